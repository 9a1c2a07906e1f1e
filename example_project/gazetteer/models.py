"""Cities, which only a data load changes, and listings, which people edit."""

from django.db import models
from django.urls import reverse
from django.utils import timezone


class City(models.Model):
    """A populated place of GeoNames. Its GeoNames ID is the primary key, so links last."""

    geonameid = models.PositiveIntegerField(primary_key=True)
    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=140, db_index=False)
    country = models.CharField(max_length=2, help_text="ISO 3166 code, upper case")
    timezone = models.CharField(max_length=40)
    population = models.PositiveIntegerField()
    latitude = models.FloatField()
    longitude = models.FloatField()

    class Meta:
        verbose_name_plural = "cities"
        constraints = [models.UniqueConstraint(fields=["country", "slug"], name="city_country_slug")]
        indexes = [
            models.Index(fields=["-population"], name="city_population"),
            models.Index(fields=["country", "-population"], name="city_country_population"),
        ]

    def __str__(self) -> str:
        return f"{self.name}, {self.country}"

    def get_absolute_url(self) -> str:
        return reverse("city-by-slug", kwargs={"country": self.country, "slug": self.slug})


class ListingQuerySet(models.QuerySet["Listing"]):
    def public(self) -> "ListingQuerySet":
        """The listings that visitors may see, as in `ListingGuard.alive`."""
        return self.filter(deleted_at=None)


class Listing(models.Model):
    """Something offered in a city. Deleting it hides it; restoring it brings back the same link."""

    city = models.ForeignKey(City, on_delete=models.CASCADE, related_name="listings")
    title = models.CharField(max_length=120)
    slug = models.SlugField(max_length=140, unique=True)
    body = models.TextField()
    price = models.DecimalField(max_digits=10, decimal_places=2, null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = ListingQuerySet.as_manager()

    class Meta:
        ordering = ["title"]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("listing-detail", kwargs={"slug": self.slug})

    # Any write works, `QuerySet.update` too: bloomguard adds a restored listing before the COMMIT.

    def soft_delete(self) -> None:
        self.deleted_at = timezone.now()
        self.save(update_fields=["deleted_at"])

    def restore(self) -> None:
        self.deleted_at = None
        self.save(update_fields=["deleted_at"])
