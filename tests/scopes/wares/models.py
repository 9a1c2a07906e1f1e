"""What each tenant, or each shard, has tables of."""

from django.db import models


class Ware(models.Model):
    """Looked up by its primary key."""

    name = models.CharField(max_length=20, default="")


class Note(models.Model):
    """Looked up by its slug, in a filter that forgets."""

    slug = models.SlugField(unique=True)
    hidden = models.BooleanField(default=False)
