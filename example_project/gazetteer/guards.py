"""The guards: they answer queries for rows that do not exist before they are sent."""

from django.db.models import Q

from bloomguard import Guard, register

from .models import City, Listing


@register(City)
class CityGuard(Guard):
    pass


@register(City)
class CityBySlugGuard(Guard):
    lookup = ("country", "slug")


@register(Listing)
class ListingGuard(Guard):
    lookup = "slug"
    alive = Q(deleted_at=None)
