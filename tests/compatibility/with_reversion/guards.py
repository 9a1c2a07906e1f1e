from reversion.models import Version

from bloomguard import Guard, register

from .models import Essay, Remark


@register(Essay)
class EssayGuard(Guard): ...


@register(Essay)
class EssayBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(Remark)
class RemarkGuard(Guard):
    lookup = ("essay", "number")
    filter = "cuckoo"


@register(Version)
class VersionGuard(Guard): ...
