from django.db import models
from mptt.models import MPTTModel, TreeForeignKey


class Genre(MPTTModel):
    slug = models.SlugField(unique=True)
    parent = TreeForeignKey("self", models.CASCADE, null=True, blank=True, related_name="children")

    class MPTTMeta:
        order_insertion_by = ["slug"]


class Shelf(MPTTModel):
    """A guard of this one looks up what mptt writes by SQL of its own."""

    slug = models.SlugField(unique=True)
    parent = TreeForeignKey("self", models.CASCADE, null=True, blank=True, related_name="children")
