"""What bloomguard protects: a query for a row that does not exist is answered before it is sent."""

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
