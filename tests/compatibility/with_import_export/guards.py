from bloomguard import Guard, register

from .models import Book


@register(Book)
class BookGuard(Guard): ...


@register(Book)
class BookByIsbnGuard(Guard):
    lookup = "isbn"
    filter = "cuckoo"
