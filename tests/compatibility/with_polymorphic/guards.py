from bloomguard import Guard, register

from .models import ArtProject, Project


@register(Project)
class ProjectGuard(Guard): ...


@register(Project)
class ProjectBySlugGuard(Guard):
    lookup = "slug"
    filter = "cuckoo"


@register(ArtProject)
class ArtProjectGuard(Guard):
    filter = "cuckoo"
