from django.conf import settings
from django.db.models import Q

from bloomguard.guards import Guard, register

from .models import Note, Ware


@register(Ware)
class WareGuard(Guard):
    scope = settings.SCOPE
    routes = ["ware"]


@register(Note)
class NoteGuard(Guard):
    scope = settings.SCOPE
    lookup = "slug"
    filter = "cuckoo"
    alive = Q(hidden=False)
