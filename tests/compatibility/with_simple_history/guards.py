from bloomguard import Guard, register

from .models import Poll


@register(Poll)
class PollGuard(Guard):
    filter = "cuckoo"


@register(Poll)
class PollBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(Poll.history.model)
class PollHistoryGuard(Guard): ...
