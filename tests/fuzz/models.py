"""Models of every shape that a guard can have: kinds of keys, tables that hang together, columns that nobody sets."""

from __future__ import annotations

import django
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower


class Author(models.Model):
    """A plain integer; most of the others point here."""

    id = models.IntegerField(primary_key=True)
    name = models.CharField(max_length=30, db_default="anon")
    rank = models.IntegerField(db_default=1)
    mentor = models.ForeignKey("self", models.SET_NULL, null=True, related_name="pupils")


class Profile(models.Model):
    """A foreign key is the primary key; and a key that may be NULL."""

    author = models.OneToOneField(Author, models.CASCADE, primary_key=True)
    code = models.CharField(max_length=30, null=True, unique=True)  # noqa: DJ001


class Tag(models.Model):
    """Looked up by text, to which other rows point."""

    id = models.IntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    weight = models.IntegerField(default=0)


class Label(Tag):
    """A proxy, whose writes come under another name."""

    class Meta:
        proxy = True


class Token(models.Model):
    """A UUID."""

    id = models.UUIDField(primary_key=True)
    author = models.ForeignKey(Author, models.CASCADE, null=True, related_name="tokens")


class Seat(models.Model):
    """A primary key of two columns."""

    pk = models.CompositePrimaryKey("bench", "number")
    bench = models.IntegerField()
    number = models.IntegerField()
    author = models.ForeignKey(Author, models.SET_NULL, null=True, related_name="seats")
    free = models.BooleanField(db_default=True)

    ALIVE = Q(free=True)


class Place(models.Model):
    """The parent of two tables."""

    id = models.IntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    closed = models.BooleanField(default=False)


class Hall(Place):
    """A child whose primary key is its parent's."""

    chairs = models.IntegerField(default=0)

    ALIVE = Q(closed=False, chairs__gte=0)


class Annex(Place):
    """A child with a primary key of its own: its parent's row is another number."""

    code = models.CharField(primary_key=True, max_length=30)
    place = models.OneToOneField(Place, models.CASCADE, parent_link=True)
    hall = models.ForeignKey(Hall, models.SET_NULL, null=True, related_name="annexes")


class Article(models.Model):
    """Soft-deleted; points to its author, perhaps, and to a slug."""

    id = models.BigIntegerField(primary_key=True)
    slug = models.SlugField(unique=True)
    deleted = models.BooleanField(default=False)
    author = models.ForeignKey(Author, models.SET_NULL, null=True, related_name="articles")
    topic = models.ForeignKey(Tag, models.SET_NULL, null=True, to_field="slug", related_name="about")
    tags = models.ManyToManyField(Tag, through="Tagging", related_name="articles")

    ALIVE = Q(deleted=False)


class Tagging(models.Model):
    """Goes with an article and a tag, and is looked up by both."""

    article = models.ForeignKey(Article, models.CASCADE)
    tag = models.ForeignKey(Tag, models.CASCADE)
    note = models.CharField(max_length=30, default="")

    class Meta:
        unique_together = [("article", "tag")]


class Club(models.Model):
    """Its members are rows of a table that Django has made."""

    id = models.IntegerField(primary_key=True)
    members = models.ManyToManyField(Author, related_name="clubs")


class Diary(models.Model):
    """Looked up by date or by amount."""

    id = models.IntegerField(primary_key=True)
    day = models.DateField(unique=True)
    amount = models.DecimalField(max_digits=8, decimal_places=2, unique=True)


class Price(models.Model):
    """Columns that the database works out."""

    id = models.IntegerField(primary_key=True)
    code = models.CharField(max_length=30, unique=True)
    net = models.IntegerField(db_default=5)
    lower = models.GeneratedField(
        expression=Lower("code"), output_field=models.CharField(max_length=30), db_persist=True
    )
    gross = models.GeneratedField(expression=F("net") * 2, output_field=models.IntegerField(), db_persist=True)

    ALIVE = Q(gross__gte=0)
    EVEN = Q(lower__in=["a2", "a6"])


class Page(models.Model):
    """Looked up by a foreign key and a slug together."""

    id = models.IntegerField(primary_key=True)
    author = models.ForeignKey(Author, models.CASCADE, related_name="pages")
    slug = models.SlugField()
    hidden = models.BooleanField(default=False)
    kept = models.BooleanField(default=False)

    class Meta:
        unique_together = [("author", "slug")]

    ALIVE = Q(hidden=False) | Q(kept=True)


class Note(models.Model):
    """A number that the database gives."""

    article = models.ForeignKey(Article, models.CASCADE, null=True, related_name="notes")
    about = models.ForeignKey("self", models.CASCADE, null=True, related_name="answers")
    title = models.CharField(max_length=30, default="")


class Entry(models.Model):
    """Text as the primary key, and a large integer with a default of the database."""

    code = models.CharField(primary_key=True, max_length=30)
    serial = models.BigIntegerField(null=True, unique=True)
    day = models.DateField(null=True)


ALL: tuple[type[models.Model], ...] = (
    Author, Profile, Tag, Label, Token, Seat, Place, Hall, Annex, Article, Tagging, Club, Diary, Price, Page, Note,
    Entry,
)  # fmt: skip

if django.VERSION >= (6, 1):

    class Badge(models.Model):
        """Goes with its author by the database's own hand."""

        id = models.IntegerField(primary_key=True)
        author = models.ForeignKey(Author, models.DB_CASCADE, null=True, related_name="badges")
        tag = models.ForeignKey(Tag, models.DB_SET_NULL, null=True, related_name="badges")

        ALIVE = Q(tag=None)

    ALL = (*ALL, Badge)
