"""Plain views, which know nothing of bloomguard."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from .models import City, Listing

PAGE = 50


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The cities whose name begins with `?q=`, or the largest ones."""
    query = request.GET.get("q", "").strip()
    cities = City.objects.order_by("-population")
    if query:
        cities = cities.filter(name__istartswith=query)
    return render(request, "gazetteer/home.html", {"query": query, "cities": cities[:PAGE]})


@require_safe
def city_detail(request: HttpRequest, pk: int) -> HttpResponse:
    return city_page(request, get_object_or_404(City, pk=pk))


@require_safe
def city_by_slug(request: HttpRequest, country: str, slug: str) -> HttpResponse:
    return city_page(request, get_object_or_404(City, country=country, slug=slug))


def city_page(request: HttpRequest, city: City) -> HttpResponse:
    return render(request, "gazetteer/city.html", {"city": city, "listings": city.listings.public()})


@require_safe
def listing_detail(request: HttpRequest, slug: str) -> HttpResponse:
    listing = get_object_or_404(Listing.objects.public().select_related("city"), slug=slug)
    return render(request, "gazetteer/listing.html", {"listing": listing})
