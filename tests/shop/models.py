"""Models of every kind that a guard may have to do with."""

from __future__ import annotations

import uuid

from django.db import models

from bloomguard.managers import GuardedManager


class Product(models.Model):
    """Looked up by its primary key."""

    name = models.CharField(max_length=100, default="")

    objects = models.Manager()
    guarded = GuardedManager()


class Bargain(Product):
    """A proxy: saving it writes to Product's table."""

    class Meta:
        proxy = True


class Bundle(Product):
    """Multi-table inheritance: saving it writes to Product's table too."""

    size = models.IntegerField(default=2)


class Order(models.Model):
    """Looked up by UUID."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Article(models.Model):
    """Looked up by slug; soft-deleted rows exist for nobody."""

    slug = models.SlugField(max_length=200, unique=True, allow_unicode=True)
    deleted = models.BooleanField(default=False)

    objects = models.Manager()
    guarded = GuardedManager()


class Place(models.Model):
    """Looked up by two fields together."""

    country = models.CharField(max_length=2)
    slug = models.SlugField()

    objects = models.Manager()
    guarded = GuardedManager()

    class Meta:
        unique_together = [("country", "slug")]


class Price(models.Model):
    """Looked up by decimal."""

    amount = models.DecimalField(max_digits=10, decimal_places=2, unique=True)


class Diary(models.Model):
    """Looked up by date."""

    day = models.DateField(unique=True)
