"""Null caching: keep the answer in the cache, even if it is "no such city".

It spares the database whoever asks twice for the same ID. Against IDs that never come twice it costs a look-up
and a write more, and memory for each. This module is the URLconf of that mode: the site's own, with one page replaced.
"""

from typing import Any

from django.core.cache import cache
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.http import require_safe

from gazetteer.models import City
from gazetteer.views import city_page

NO_CITY = "no city"  # not None, which the cache returns for a missing key


def cached_city_or_404(pk: int) -> City:
    key = cache_key(pk)
    city: City | str | None = cache.get(key)
    if city is None:
        try:
            city = City.objects.get(pk=pk)
        except City.DoesNotExist:
            city = NO_CITY
        cache.set(key, city)
    if not isinstance(city, City):
        raise Http404("No City matches the given query.")
    return city


def cache_key(pk: int) -> str:
    return f"city:{pk}"


@receiver([post_save, post_delete], sender=City)
def forget(instance: City, **kwargs: Any) -> None:
    """Delete the cached absence of a new city. Reaches other workers only through a shared cache."""
    cache.delete(cache_key(instance.pk))


@require_safe
def city_detail(request: HttpRequest, pk: int) -> HttpResponse:
    return city_page(request, cached_city_or_404(pk))


urlpatterns = [
    path("cities/<int:pk>/", city_detail, name="city-detail"),
    path("", include("config.urls")),
]
