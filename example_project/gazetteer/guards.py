"""What bloomguard protects: a request for a row that does not exist ends before the database is asked."""

from django.db.models import Q

from bloomguard.guards import Guard, register

from .models import City, Listing


@register(City)
class CityGuard(Guard):
    lookup = "pk"
    routes = ["city-detail"]
    error_rate = 0.001


@register(City)
class CityBySlugGuard(Guard):
    lookup = ("country", "slug")
    routes = ["city-by-slug"]


@register(Listing)
class ListingGuard(Guard):
    lookup = "slug"
    routes = ["listing-detail"]
    alive = Q(deleted_at=None)
