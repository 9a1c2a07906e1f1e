from bloomguard import Guard, register

from .models import Recipe


@register(Recipe)
class RecipeGuard(Guard): ...


@register(Recipe)
class RecipeByNumberGuard(Guard):
    lookup = "number"
    filter = "cuckoo"


@register(Recipe._parler_meta.root_model)
class TranslationGuard(Guard):
    """What addresses in several languages look up."""

    lookup = ("language_code", "slug")
    filter = "cuckoo"
