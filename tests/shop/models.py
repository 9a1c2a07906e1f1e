"""Models of every kind that a guard may have to do with."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import functions


class Product(models.Model):
    """Looked up by its primary key."""

    name = models.CharField(max_length=100, default="")


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


class Place(models.Model):
    """Looked up by two fields together."""

    country = models.CharField(max_length=2)
    slug = models.SlugField()

    class Meta:
        unique_together = [("country", "slug")]


class Price(models.Model):
    """Looked up by decimal."""

    amount = models.DecimalField(max_digits=10, decimal_places=2, unique=True)


class Diary(models.Model):
    """Looked up by date."""

    day = models.DateField(unique=True)


class Ticket(models.Model):
    """Looked up by a primary key of two columns."""

    pk = models.CompositePrimaryKey("event", "number")
    event = models.IntegerField()
    number = models.IntegerField()
    note = models.CharField(max_length=20, default="")


class Labelled(models.Model):
    """The first parent of :class:`Exhibit`."""

    label_id = models.BigAutoField(primary_key=True)
    label = models.CharField(max_length=50, default="")


class Shelved(models.Model):
    """The second parent of :class:`Exhibit`, whose rows have primary keys of their own."""

    shelf_id = models.BigAutoField(primary_key=True)
    shelf = models.CharField(max_length=50, default="")


class Exhibit(Labelled, Shelved):
    """A child of two parents."""

    room = models.IntegerField(default=1)


class ShoutingField(models.CharField):
    """Stores something else than what it is given, and does not tell the instance."""

    def pre_save(self, instance, add):
        return super().pre_save(instance, add).upper()


class Tag(models.Model):
    """What is stored is worked out by a field, by the database, or from another column."""

    shout = ShoutingField(max_length=50, default="")
    made = models.CharField(max_length=50, db_default="made-by-default")
    title = models.CharField(max_length=50, default="")
    lower = models.GeneratedField(
        expression=functions.Lower("title"), output_field=models.CharField(max_length=50), db_persist=True
    )


class Short(models.Model):
    """PostgreSQL cuts spaces off the end of a text that is too long for its column."""

    slug = models.CharField(max_length=5, unique=True)


class BoundShort(models.Model):
    """A foreign key to a short text."""

    target = models.ForeignKey(Short, models.CASCADE, to_field="slug", unique=True, db_constraint=False)


class BoundPrice(models.Model):
    """A foreign key to a decimal."""

    price = models.ForeignKey(Price, models.CASCADE, to_field="amount", unique=True, db_constraint=False)


class UpperField(models.CharField):
    """Converts what it is given on its way to the database."""

    def get_prep_value(self, value):
        value = super().get_prep_value(value)
        return None if value is None else value.upper()


class Shout(models.Model):
    """A primary key that the field converts."""

    code = UpperField(primary_key=True, max_length=20)


class Echo(models.Model):
    """A foreign key to a field that converts."""

    shout = models.ForeignKey(Shout, models.CASCADE, unique=True, db_constraint=False)


class LoweringField(models.CharField):
    """Lets the database convert what is stored."""

    def get_placeholder(self, value, compiler, connection):
        return "LOWER(%s)"

    def get_placeholder_sql(self, value, compiler, connection):  # its name since Django 6.1
        return "LOWER(%s)", (value,)


class ReversingField(models.CharField):
    """Converts what is read."""

    def get_db_converters(self, connection):
        return [lambda value, expression, connection: None if value is None else value[::-1]]


class SelectingField(models.CharField):
    """Lets the database convert what is read, though not what RETURNING gives."""

    def select_format(self, compiler, sql, params):
        return f"UPPER({sql})", params


class Converted(models.Model):
    """Texts that their fields convert, each in another way than by ``get_prep_value``."""

    lowered = LoweringField(max_length=50, default="")
    reversed = ReversingField(max_length=50, default="")
    selected = SelectingField(max_length=50, default="")


class Review(models.Model):
    """Goes with its product; is left behind, without one, by its article."""

    product = models.ForeignKey(Product, models.CASCADE)
    article = models.ForeignKey(Article, models.SET_NULL, null=True)
