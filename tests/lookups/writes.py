"""Writes of every kind between the querysets: rows come, go, change their keys, are hidden and shown again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import F, Model

from tests.support import database

from .models import ALL, Annex, Article, Author, Diary, Hall, Listing, Page, Place, Seat, Tag, Tagging, Token
from .querysets import NUMBERS, value_of

#: Models whose rows are one row of one table each, in an order in which what is pointed at comes first.
PLAIN = (Author, Tag, Token, Seat, Place, Article, Tagging, Listing, Diary, Page)


class Writes:
    """Writes rows by their numbers, and notes which in :attr:`recent`."""

    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        self.recent: list[int] = []
        self._kinds = [
            self.create, self.save, self.bulk_create, self.bulk_create_conflicting, self.get_or_create,
            self.update_or_create, self.create_of_author, self.tag_articles, self.move_articles, self.delete,
            self.delete_by_query, self.rekey, self.rekey_by_query, self.rekey_in_bulk, self.shift, self.hide_or_show,
            self.hide_by_query,
        ]  # fmt: skip

    def seed(self) -> None:
        """About half of all rows, and others in the other database, of which the guards know nothing."""
        for model in (Author, Tag, Token):
            for other in set(connections) - {database.current}:
                rows = [model(pk=value_of(model._meta.pk, number)) for number in range(0, NUMBERS, 2)]
                if model is Tag:
                    rows = [Tag(id=row.pk, slug=f"a{row.pk}") for row in rows]
                model.objects.using(other).bulk_create(rows)
        for model in (Author, Tag, Token, Seat, Place, Hall, Annex, Article, Tagging, Listing, Diary, Page):
            for number in self.random.sample(range(NUMBERS), NUMBERS // 2):
                with suppress(IntegrityError), transaction.atomic(using=database.current):
                    self.made(model, number).save()

    def __call__(self) -> None:
        """One write; it is as if nothing had been if rows are in its way."""
        number = self.random.randrange(NUMBERS)
        self.recent[:] = [*self.recent[-7:], number]
        with suppress(IntegrityError), transaction.atomic(using=database.current):
            self.random.choice(self._kinds)(number)

    def raw_insert(self, model: type[Model], number: int) -> None:
        """Insert a row by SQL that no compiler has made; nothing if it is in another's way."""
        row, connection = self.made(model, number), connections[database.current]
        fields = model._meta.local_concrete_fields
        sql = "INSERT INTO {} ({}) VALUES ({})".format(
            model._meta.db_table, ", ".join(field.column for field in fields), ", ".join("%s" for _ in fields)
        )
        values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
        self.recent[:] = [*self.recent[-7:], number]
        with suppress(IntegrityError), transaction.atomic(using=database.current), connection.cursor() as cursor:
            cursor.execute(sql, values)

    # -- rows

    def some(self, model: type[Model], name: str = "pk") -> Any:
        """The value of some row, or ``None``."""
        found = list(model._base_manager.order_by("pk").values_list(name, flat=True))
        return self.random.choice([*found, None]) if found else None

    def made(self, model: type[Model], number: int) -> Model:
        """Row ``number``, not saved."""
        if model in (Hall, Annex):  # a place is one of them: Django deletes a parent's row and not its other child's
            number = number // 2 * 2 + (model is Annex)
        values: dict[str, Any] = {}
        for field in model._meta.concrete_fields:
            if field.remote_field is None:
                values[field.attname] = value_of(field, number)
            elif not (field.primary_key or field.remote_field.parent_link):
                values[field.attname] = self.some(field.related_model, field.target_field.attname)
        for name, numbers in {"hidden": 2, "kept": 3, "deleted": 3}.items():
            if name in values:
                values[name] = self.random.randrange(numbers) == 0
        if model is Annex:
            values["code"] = f"a{number * 7 % NUMBERS}"
        if model is Seat:
            values |= {"bench": number % 5, "number": number // 5}
        if model is Page:
            values |= {"author_id": number % 5, "slug": f"a{number // 5}"}
        return model(**values)

    def row_of(self, model: type[Model]) -> Any:
        """Some row that is there, or ``None``."""
        pk = self.some(model)
        return None if pk is None else model._base_manager.get(pk=pk)

    # -- one function for each kind of write

    def create(self, number: int) -> None:
        self.made(self.random.choice(ALL), number).save(force_insert=True)

    def save(self, number: int) -> None:
        self.made(self.random.choice(ALL), number).save()

    def bulk_create(self, number: int) -> None:
        model = self.random.choice(PLAIN)
        model.objects.bulk_create(self.made(model, each) for each in {number, (number + 1) % NUMBERS})

    def bulk_create_conflicting(self, number: int) -> None:
        model = self.random.choice([Author, Tag, Place, Listing])
        rows = [self.made(model, each) for each in {number, (number + 3) % NUMBERS}]
        if self.random.random() < 0.5:
            model.objects.bulk_create(rows, ignore_conflicts=True)
        else:
            names = [field.name for field in model._meta.local_concrete_fields if not field.primary_key]
            model.objects.bulk_create(
                rows, update_conflicts=True, unique_fields=database.conflicting("id"), update_fields=names
            )

    def get_or_create(self, number: int) -> None:
        Tag.objects.get_or_create(slug=f"a{number}", defaults={"id": number})

    def update_or_create(self, number: int) -> None:
        Article.objects.update_or_create(slug=f"a{number}", defaults={"deleted": False}, create_defaults={"id": number})

    def create_of_author(self, number: int) -> None:
        author = Author.objects.filter(pk=number % 5).first()
        if author is not None:
            author.pages.create(id=number, slug=f"a{number // 5}")

    def tag_articles(self, number: int) -> None:
        article = self.row_of(Article)
        tag = Tag.objects.filter(pk=number).first()
        if article is not None and tag is not None:
            change: Callable[[], None] = self.random.choice([
                lambda: article.tags.add(tag, through_defaults={"id": number}), lambda: article.tags.remove(tag),
                lambda: article.tags.set([tag], through_defaults={"id": number}), article.tags.clear,
            ])  # fmt: skip
            change()

    def move_articles(self, number: int) -> None:
        author = Author.objects.filter(pk=number).first()
        if author is not None:
            author.articles.add(*Article.objects.filter(pk__lt=number)[:2])

    def delete(self, number: int) -> None:
        row = self.row_of(self.random.choice(ALL))
        if row is not None:
            row.delete()

    def delete_by_query(self, number: int) -> None:
        model = self.random.choice(PLAIN)
        name = self.keys(model)[0]
        model.objects.filter(**{name: value_of(model._meta.get_field(name), number)}).delete()

    def keys(self, model: type[Model]) -> list[str]:
        """Columns of the model that a guard looks up, and that may change."""
        keys = {
            Tag: ["slug", "id"],
            Article: ["slug", "id"],
            Diary: ["day", "amount"],
            Place: ["slug"],
            Annex: ["slug"],
        }
        return keys.get(model) or [model._meta.concrete_fields[0].name]

    def rekey(self, number: int) -> None:
        model = self.random.choice([Tag, Place, Hall, Annex, Article, Diary])
        row = self.row_of(model)
        name = "slug" if model is Hall else self.keys(model)[0]
        if row is not None:
            setattr(row, name, value_of(model._meta.get_field(name), number))
            row.save(**self.random.choice([{}, {"update_fields": [name]}]))

    def rekey_by_query(self, number: int) -> None:
        model = self.random.choice([Tag, Place, Annex, Article, Diary, Listing])
        name = self.random.choice(self.keys(model))
        pk = self.some(model)
        model.objects.filter(pk=pk).update(**{name: value_of(model._meta.get_field(name), number)})

    def rekey_in_bulk(self, number: int) -> None:
        model = self.random.choice([Tag, Place, Article, Diary])
        name = self.keys(model)[0]
        rows = list(model.objects.filter(pk__gte=number).order_by("pk")[:2])
        for offset, row in enumerate(rows):
            setattr(row, name, value_of(model._meta.get_field(name), (number + offset) % NUMBERS))
        model.objects.bulk_update(rows, [name])

    def shift(self, number: int) -> None:
        """A key that the database works out."""
        Listing.objects.filter(pk=number).update(id=F("id") + 1)

    def hide_or_show(self, number: int) -> None:
        model, name = self.random.choice([(Article, "deleted"), (Listing, "hidden"), (Listing, "kept")])
        row = self.row_of(model)
        if row is not None:
            setattr(row, name, not getattr(row, name))
            row.save(**self.random.choice([{}, {"update_fields": [name]}]))

    def hide_by_query(self, number: int) -> None:
        model, name = self.random.choice([(Article, "deleted"), (Listing, "hidden"), (Listing, "kept")])
        model.objects.filter(pk__in=[number, number + 1]).update(**{name: self.random.random() < 0.5})
