from bloomguard import Guard, register

from .models import Member, Region, Topic


@register(Topic)
class TopicGuard(Guard): ...


@register(Topic)
class TopicBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(Topic)
class TopicByPathGuard(Guard):
    lookup = "path"
    filter = "cuckoo"


@register(Region)
class RegionGuard(Guard):
    filter = "cuckoo"


@register(Region)
class RegionByEdgesGuard(Guard):
    lookup = ("tree_id", "lft", "rgt")


@register(Member)
class MemberGuard(Guard):
    filter = "cuckoo"


@register(Member)
class MemberByParentGuard(Guard):
    lookup = ("parent", "slug")
