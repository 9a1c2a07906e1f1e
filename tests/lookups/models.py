"""Models of every shape that a query for one row may have to do with. No migrations: the test databases get tables."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q


class Author(models.Model):
    """A plain primary key, and relations from most of the others."""

    id = models.IntegerField(primary_key=True)
    name = models.CharField(max_length=30, default="")
    rating = models.IntegerField(default=0)
    mentor = models.ForeignKey("self", models.SET_NULL, null=True, related_name="pupils")


class Good(models.Manager):
    """Leaves out authors with a low rating."""

    def get_queryset(self):
        return super().get_queryset().filter(rating__gte=20)


class Writer(Author):
    """A proxy, whose default manager does not see every row."""

    good = Good()
    objects = models.Manager()

    class Meta:
        proxy = True


class Tag(models.Model):
    """Looked up by text, to which other rows point."""

    id = models.IntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    label = models.CharField(max_length=30, default="")


class Token(models.Model):
    """A primary key that has several spellings."""

    id = models.UUIDField(primary_key=True, default=uuid.UUID(int=2**96))  # the same each time: runs are compared
    author = models.ForeignKey(Author, models.CASCADE, null=True, related_name="tokens")


class Seat(models.Model):
    """A primary key of two columns."""

    pk = models.CompositePrimaryKey("bench", "number")
    bench = models.IntegerField()
    number = models.IntegerField()
    author = models.ForeignKey(Author, models.SET_NULL, null=True, related_name="seats")


class Place(models.Model):
    """The parent of two tables."""

    id = models.IntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    size = models.IntegerField(default=0)


class Hall(Place):
    """A child whose primary key is its parent's."""

    chairs = models.IntegerField(default=0)


class Annex(Place):
    """A child with a primary key of its own: its parent's row is another number."""

    code = models.CharField(primary_key=True, max_length=30)
    place = models.OneToOneField(Place, models.CASCADE, parent_link=True)
    hall = models.ForeignKey(Hall, models.SET_NULL, null=True, related_name="annexes")


class Undeleted(models.Manager):
    """Leaves out deleted articles, as a guard's ``alive`` does."""

    def get_queryset(self):
        return super().get_queryset().filter(deleted=False)


class Article(models.Model):
    """Soft-deleted; points to its author, perhaps, and to a slug."""

    id = models.IntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    deleted = models.BooleanField(default=False)
    author = models.ForeignKey(Author, models.SET_NULL, null=True, related_name="articles")
    topic = models.ForeignKey(Tag, models.SET_NULL, null=True, to_field="slug", related_name="about")
    tags = models.ManyToManyField(Tag, through="Tagging", related_name="articles")

    objects = models.Manager()
    undeleted = Undeleted()

    ALIVE = Q(deleted=False)


class Tagging(models.Model):
    """Goes with an article and a tag."""

    id = models.IntegerField(primary_key=True)
    article = models.ForeignKey(Article, models.CASCADE)
    tag = models.ForeignKey(Tag, models.CASCADE)


class Listing(models.Model):
    """Soft-deleted, unless somebody keeps it."""

    id = models.IntegerField(primary_key=True)
    hidden = models.BooleanField(default=False)
    kept = models.BooleanField(default=False)
    place = models.ForeignKey(Place, models.CASCADE, null=True, related_name="listings")

    ALIVE = Q(hidden=False) | Q(kept=True)


class Diary(models.Model):
    """Looked up by date or by amount."""

    id = models.IntegerField(primary_key=True)
    day = models.DateField(unique=True)
    amount = models.DecimalField(max_digits=8, decimal_places=2, unique=True)
    author = models.ForeignKey(Author, models.SET_NULL, null=True, related_name="diaries")


class Page(models.Model):
    """Looked up by a foreign key and a slug together."""

    id = models.IntegerField(primary_key=True)
    author = models.ForeignKey(Author, models.CASCADE, related_name="pages")
    slug = models.SlugField()
    views = models.IntegerField(default=0)

    class Meta:
        unique_together = [("author", "slug")]


class Kept(models.Manager):
    """Leaves out rows that are gone."""

    def get_queryset(self):
        return super().get_queryset().filter(gone=False)


class Shelf(models.Model):
    """Its base manager leaves rows out."""

    gone = models.BooleanField(default=False)

    objects = models.Manager()
    kept = Kept()

    class Meta:
        base_manager_name = "kept"


class ShiftedField(models.IntegerField):
    """The column holds another number than the attribute."""

    def get_prep_value(self, value):
        return None if value is None else int(value) + 100

    def from_db_value(self, value, expression, connection):
        return None if value is None else value - 100


class RoundingField(models.IntegerField):
    """Rounds what a form gives. Django itself cuts a number that is stored or looked up."""

    def to_python(self, value):
        return None if value is None else round(float(value))


class Rounded(models.Model):
    """Looked up by two columns, of which one converts a number to another than it stores."""

    pk = models.CompositePrimaryKey("shelf", "code")
    shelf = models.IntegerField()
    code = RoundingField()


class Coded(models.Model):
    """Looked up by a field with conversions of its own."""

    code = ShiftedField(unique=True)


ALL = (Author, Writer, Tag, Token, Seat, Place, Hall, Annex, Article, Tagging, Listing, Diary, Page)
