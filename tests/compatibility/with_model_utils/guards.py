from django.db.models import Q

from bloomguard import Guard, register

from .models import Memo, Theatre, Venue


@register(Memo)
class MemoGuard(Guard):
    alive = Q(is_removed=False)
    filter = "cuckoo"


@register(Memo)
class MemoBySlugGuard(Guard):
    lookup = "slug"
    alive = Q(is_removed=False, status="published")


@register(Memo)
class MemoByTokenGuard(Guard):
    lookup = "token"
    filter = "cuckoo"


@register(Venue)
class VenueGuard(Guard): ...


@register(Theatre)
class TheatreGuard(Guard):
    filter = "cuckoo"
