from bloomguard import Guard, register

from .models import Genre, Shelf


@register(Genre)
class GenreGuard(Guard): ...


@register(Genre)
class GenreBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(Genre)
class GenreByParentGuard(Guard):
    lookup = ("parent", "slug")
    filter = "cuckoo"


@register(Shelf)
class ShelfGuard(Guard):
    filter = "cuckoo"


@register(Shelf)
class ShelfInTreeGuard(Guard):
    lookup = ("tree_id", "lft")
