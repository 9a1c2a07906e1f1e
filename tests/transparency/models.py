"""What the site shows: rows under an integer, a slug, a text and a pair of columns."""

from __future__ import annotations

from datetime import date, datetime, timezone

from django.db import models

LONG_AGO = datetime(2020, 2, 2, 2, 2, 2, tzinfo=timezone.utc)


class PublicManager(models.Manager["Entry"]):
    def get_queryset(self) -> models.QuerySet[Entry]:
        return super().get_queryset().filter(alive=True)


class Entry(models.Model):
    """Looked up by its primary key and by its slug; rows that are not alive are hidden."""

    slug = models.SlugField(max_length=80, unique=True)
    title = models.CharField(max_length=80, default="A title")
    day = models.DateField(default=date(2020, 2, 2))
    changed = models.DateTimeField(default=LONG_AGO)
    alive = models.BooleanField(default=True)

    objects = models.Manager()
    public = PublicManager()

    def __str__(self) -> str:
        return self.slug

    def get_absolute_url(self) -> str:
        return f"/plain/{self.pk}/"


class OldSlug(models.Model):
    """A slug that an entry no longer has."""

    slug = models.SlugField(max_length=80, unique=True)
    now = models.SlugField(max_length=80)


class Note(models.Model):
    """Looked up by a text, which the admin quotes in its addresses."""

    name = models.CharField(max_length=80, primary_key=True)
    title = models.CharField(max_length=80, default="A title")
    alive = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return "/note/of/old/"


class Place(models.Model):
    """Looked up by two columns together."""

    country = models.CharField(max_length=2)
    slug = models.SlugField(max_length=80)
    title = models.CharField(max_length=80, default="A title")
    alive = models.BooleanField(default=True)

    class Meta:
        unique_together = [("country", "slug")]

    def __str__(self) -> str:
        return f"{self.country}/{self.slug}"
