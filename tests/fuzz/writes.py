"""Every way of the ORM to write rows, one method each. None of this knows of bloomguard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from asgiref.sync import async_to_sync
from django.apps import apps as real_apps
from django.core import serializers
from django.db import IntegrityError, connection, models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import Case, F, Model, Value, When
from django.db.models.functions import Cast, Concat

from .models import (
    ALL,
    Annex,
    Article,
    Author,
    Club,
    Diary,
    Entry,
    Hall,
    Label,
    Note,
    Page,
    Place,
    Price,
    Seat,
    Tag,
    Tagging,
    Token,
)
from .rows import KEYS, NUMBERS, PLAIN, made, row_of, shape, some, value_of

SOME = Case(When(id__gt=0, then=True), default=False)
NUMBERED = Concat(Value("a"), F("id"), output_field=models.CharField())

_historical: dict[str, Any] = {}


def historical(name: str) -> Any:
    """The model as a migration has it."""
    if not _historical:
        state = ProjectState()
        for model in (Tag, Price, Entry, Diary):
            state.add_model(ModelState.from_model(model))
        _historical.update({model.__name__: model for model in state.apps.get_models()})
    return _historical[name]


#: What two write at the same time: no row of one decides what becomes of another's.
OWN: tuple[type[Model], ...] = (Tag, Token, Diary, Entry)


def own_table(seed: int) -> type[Model]:
    """What :meth:`Writes.own` writes by this seed."""
    return Random(seed).choice(OWN)


#: Tables whose rows may move under a scan that goes by the primary key.
MOVED: tuple[type[Model], ...] = (Tag, Article, Diary, Page, Price, Note)


def moved_table(seed: int) -> type[Model]:
    """What :meth:`Writes.move` writes by this seed."""
    return Random(seed).choice(MOVED)


class Writes:
    """Writes rows by numbers from ``first`` on. Each method does one thing, drawn from ``draw``, and tells what."""

    def __init__(self, first: int) -> None:
        self.first = first

    def number(self, draw: Random) -> int:
        return self.first + draw.randrange(NUMBERS)

    def key(self, model: type[Model], draw: Random, number: int | None = None) -> tuple[str, Any]:
        """A column that matters, and a value for it."""
        name = draw.choice(KEYS.get(model) or [model._meta.concrete_fields[0].name])
        field: Any = model._meta.get_field(name)
        if field.remote_field is not None:
            return field.attname, some(field.related_model, draw, field.target_field.attname, null=field.null)
        return name, value_of(field, self.number(draw) if number is None else number)

    def plant(self, draw: Random) -> None:
        """Rows of every model to begin with."""
        for model in ALL:
            for number in draw.sample(range(NUMBERS), NUMBERS // 3):
                with suppress(IntegrityError), transaction.atomic():
                    made(model, self.first + number, draw).save(force_insert=True)

    def own(self, draw: Random) -> Any:
        """A row of a table that nobody else writes just now, nor what it points to."""
        model: type[Model] = draw.choice(OWN)
        number = self.number(draw)
        rows = model._base_manager.filter(pk=value_of(model._meta.pk, number))
        values = {
            field.attname: value_of(field, number) for field in model._meta.concrete_fields if not field.is_relation
        }
        changes: list[Callable[[], Any]] = [
            lambda: len(model._base_manager.bulk_create([model(**values)])),
            lambda: shape(model(**values).save()),
            lambda: rows.update(**{name: value for name, value in [self.key(model, draw)] if name != "id"}),
            lambda: rows.delete(),
        ]
        return draw.choice(changes)()

    # -- one row

    def create(self, draw: Random) -> Any:
        row = made(draw.choice(ALL), self.number(draw), draw)
        row.save(force_insert=draw.random() < 0.7)
        return shape(row)

    def save(self, draw: Random) -> Any:
        """A row that is there, or is not, with another number in its keys."""
        model = draw.choice(ALL)
        row = row_of(model, draw) if draw.random() < 0.6 else made(model, self.number(draw), draw)
        if row is None:
            return None
        name, value = self.key(model, draw)
        if name != "id" or draw.random() < 0.3:
            setattr(row, name, value)
        row.save()
        return shape(row)

    def save_fields(self, draw: Random) -> Any:
        model = draw.choice(ALL)
        pk = some(model, draw, null=False)
        if pk is None:
            return None
        name, value = self.key(model, draw)
        if model._meta.get_field(name).primary_key or name in ("bench", "number"):
            return None
        row = model._base_manager.only("pk", name).filter(pk=pk).first()
        if row is None:
            return None
        setattr(row, name, value)
        row.save(**draw.choice([{}, {"update_fields": [name]}]))
        return row._state.adding

    def copy(self, draw: Random) -> Any:
        """A row once more, under another primary key."""
        model = draw.choice([Author, Tag, Token, Diary, Entry, Article, Hall])
        row = row_of(model, draw)
        if row is None:
            return None
        for field in model._meta.concrete_fields:
            if field.unique and field.remote_field is None:
                setattr(row, field.attname, value_of(field, self.number(draw)))
        if model is Hall:
            row.pk = row.id
        row._state.adding = draw.random() < 0.5
        row.save()
        return shape(row)

    def get_or_create(self, draw: Random) -> Any:
        model, name = draw.choice([(Tag, "slug"), (Place, "slug"), (Price, "code"), (Diary, "day"), (Entry, "code")])
        number = self.number(draw)
        row = made(model, number, draw)
        given = {
            field.attname: getattr(row, field.attname)
            for field in model._meta.concrete_fields
            if field.attname in row.__dict__ and not getattr(field, "generated", False)
        }
        given = {key: value for key, value in given.items() if not hasattr(value, "resolve_expression")}
        where = {name: value_of(model._meta.get_field(name), number)}
        given.pop(name, None)
        if draw.random() < 0.5:
            return [shape(one) for one in model._base_manager.get_or_create(**where, defaults=given)]
        other = {key: value for key, value in [self.key(model, draw)] if key not in where and key != "id"}
        found = model._base_manager.update_or_create(**where, defaults=other, create_defaults={**given, **other})
        return [shape(one) for one in found]

    # -- many rows

    def bulk_create(self, draw: Random) -> Any:
        model = draw.choice(PLAIN)
        numbers = draw.sample(range(NUMBERS), draw.choice([1, 1, 2, 3]))
        rows = [made(model, self.first + number, draw) for number in numbers]
        options: dict[str, Any] = draw.choice([{}, {}, {"batch_size": 1}, {"ignore_conflicts": True}])
        unique = [field for field in model._meta.concrete_fields if field.unique and field.attname != "id"]
        if draw.random() < 0.4 and model not in (Seat, Tagging, Note):
            target = draw.choice([*unique, model._meta.pk])
            names = [
                field.name for field in model._meta.concrete_fields
                if field is not target and not field.primary_key and not getattr(field, "generated", False)
            ]  # fmt: skip
            if names:
                options = {"update_conflicts": True, "update_fields": names}
                if connection.features.supports_update_conflicts_with_target:
                    options["unique_fields"] = [target.name]
        try:
            return [shape(row) for row in model._base_manager.bulk_create(rows, **options)]
        except AssertionError as error:  # Django's: a rule of the table made fewer rows
            raise RuntimeError from error

    def bulk_update(self, draw: Random) -> Any:
        model = draw.choice([Tag, Label, Place, Hall, Article, Diary, Price, Page, Entry, Seat])
        rows = list(model._base_manager.order_by("pk")[: draw.choice([1, 2, 3])])
        name, _ = self.key(model, draw)
        if not rows or model._meta.get_field(name).primary_key or (model is Seat and name != "free"):
            return None
        taken = {getattr(row, name) for row in rows}
        for row in rows:
            value = draw.choice([self.key_value(model, name, draw), F(name)])
            if connection.vendor == "sqlite" and value in taken:
                value = F(name)  # docs/limits.md: the order of the rows decides whether they can exchange values
            setattr(row, name, value)
        return model._base_manager.bulk_update(rows, [name], batch_size=draw.choice([None, 1]))

    def key_value(self, model: type[Model], name: str, draw: Random) -> Any:
        field: Any = model._meta.get_field(name)
        if field.remote_field is not None:
            return some(field.related_model, draw, field.target_field.attname, null=field.null)
        return value_of(field, self.number(draw))

    def update(self, draw: Random) -> Any:
        model = draw.choice(ALL)
        name, value = self.key(model, draw)
        rows = model._base_manager.filter(pk=some(model, draw))
        if draw.random() < 0.3:
            more, other = self.key(model, draw)
            return rows.update(**{name: value, more: other})
        return rows.update(**{name: value})

    def update_many(self, draw: Random) -> Any:
        """Rows that their own columns choose, and expressions for values."""
        changes: list[Callable[[], int]] = [
            lambda: Article.objects.filter(deleted=draw.random() < 0.5).update(deleted=draw.random() < 0.5),
            lambda: Article.objects.filter(author__rank__gt=1).update(deleted=SOME),
            lambda: Page.objects.filter(hidden=True).update(hidden=F("kept")),
            lambda: Page.objects.update(kept=draw.random() < 0.5, hidden=draw.random() < 0.5),
            lambda: Tag.objects.filter(pk__gte=self.number(draw)).update(slug=Concat(F("slug"), Value("x"))),
            lambda: Tag.objects.filter(slug__endswith="x").update(slug=NUMBERED),
            lambda: Price.objects.filter(net__lt=3).update(net=F("net") + draw.choice([-5, 1, 7])),
            lambda: Place.objects.filter(closed=True).update(closed=False, slug=Concat(Value("z"), F("slug"))),
            lambda: Hall.objects.update(chairs=F("chairs") + draw.choice([-1, 1]), closed=draw.random() < 0.3),
            lambda: Entry.objects.update(serial=F("serial") + 1),
            lambda: Diary.objects.update(amount=F("amount") + draw.choice([1, "0.01"])),
            lambda: Seat.objects.filter(author=None).update(free=draw.random() < 0.5),
            lambda: Seat.objects.filter(bench=draw.randrange(3)).update(bench=F("bench") + 3),
            lambda: Label.objects.filter(weight__gte=0).update(weight=F("weight") + 1),
            lambda: Author.objects.update(rank=F("rank") + 1),
            lambda: Annex.objects.update(hall=None),
        ]  # fmt: skip
        return draw.choice(changes)()

    def move(self, draw: Random) -> Any:
        """Rows that get another primary key, or what another row had, in one statement."""
        model: type[Model] = draw.choice(MOVED)
        pks = list(model._base_manager.order_by("pk").values_list("pk", flat=True))
        if not pks:
            return None
        one, other = pks[0], pks[-1]
        if model in (Article, Note) and draw.random() < 0.7:
            name = "topic" if model is Article else "about"
            values = dict(model._base_manager.filter(pk__in=[one, other]).values_list("pk", f"{name}_id"))
            whens = [When(pk=pk, then=Value(values[mine])) for pk, mine in [(one, other), (other, one)]]
            # As `bulk_update` does: PostgreSQL takes a CASE of NULLs for a text.
            exchanged = Cast(Case(*whens), output_field=model._meta.get_field(name))
            return model._base_manager.filter(pk__in=[one, other]).update(**{f"{name}_id": exchanged})
        if draw.random() < 0.5:
            return model._base_manager.filter(pk=other).update(id=one - 1)  # a page that a scan has read by then
        return model._base_manager.filter(pk=draw.choice([one, other])).update(id=self.key_value(model, "id", draw))

    def delete(self, draw: Random) -> Any:
        row = row_of(draw.choice(ALL), draw)
        return None if row is None else row.delete()

    def delete_many(self, draw: Random) -> Any:
        model = draw.choice(ALL)
        name, value = self.key(model, draw)
        rows = model._base_manager.filter(**{name: value})
        return rows._raw_delete("default") if draw.random() < 0.2 and model in (Diary, Token, Page) else rows.delete()

    # -- relations

    def through(self, draw: Random) -> Any:
        """Rows of tables between two others."""
        if draw.random() < 0.5:
            one, other = row_of(Article, draw), row_of(Tag, draw)
            manager = None if one is None else one.tags
        else:
            one, other = row_of(Club, draw), row_of(Author, draw)
            manager = None if one is None else one.members
            if one is not None and other is not None and draw.random() < 0.4:
                manager, other = other.clubs, one
        if manager is None or other is None:
            return None
        change = draw.choice(["add", "add", "add", "remove", "set", "clear"])
        if change == "clear":
            return manager.clear()
        return getattr(manager, change)([other] if change == "set" else other)

    def related(self, draw: Random) -> Any:
        author = row_of(Author, draw)
        if author is None:
            return None
        number = self.number(draw)
        articles = Article.objects.order_by("pk")[: draw.choice([1, 2])]
        changes: list[Callable[[], Any]] = [
            lambda: shape(author.pages.create(id=value_of(Page._meta.pk, number), slug=f"a{number}")),
            lambda: author.articles.add(*articles, bulk=draw.random() < 0.5),
            lambda: author.articles.set(articles),
            lambda: author.articles.clear(),
            lambda: author.seats.clear(),
            lambda: author.tokens.set(Token.objects.order_by("pk")[:1], bulk=False),
            lambda: author.pages.filter(hidden=True).delete(),
            lambda: author.pages.update(slug=Concat(F("slug"), Value("y"))),
            lambda: author.pages.update_or_create(slug=f"a{number}", defaults={"id": number, "kept": True})[1],
        ]
        return draw.choice(changes)()

    # -- others

    def migration(self, draw: Random) -> Any:
        """Models as migrations have them."""
        model = historical(draw.choice(["Tag", "Entry", "Price", "Diary"]))
        real = real_apps.get_model("fuzz", model.__name__)
        number = self.number(draw)
        values = {
            field.attname: value_of(field, number)
            for field in real._meta.concrete_fields
            if not getattr(field, "generated", False) and not (field.has_db_default() and draw.random() < 0.5)
        }
        rows = model._base_manager
        name, value = self.key(real, draw)
        changes: list[Callable[[], Any]] = [
            lambda: shape(rows.create(**values)),
            lambda: len(rows.bulk_create([model(**values)])),
            lambda: rows.filter(pk=some(real, draw)).update(**{name: value}),
            lambda: rows.filter(pk=some(real, draw)).delete()[0],
        ]
        return draw.choice(changes)()

    def fixture(self, draw: Random) -> Any:
        """Rows of a dump are loaded, changed or as they are."""
        model = draw.choice([Author, Tag, Token, Article, Place, Diary, Page, Entry])
        rows = list(model._base_manager.order_by("pk")[: draw.choice([1, 3])])
        dump = serializers.serialize("json", rows)
        if draw.random() < 0.5:
            model._base_manager.filter(pk__in=[row.pk for row in rows]).delete()
        else:
            for row in rows:
                name, value = self.key(model, draw)
                if not model._meta.get_field(name).primary_key:
                    setattr(row, name, value)
            dump = serializers.serialize("json", rows)
        for found in serializers.deserialize("json", dump):
            found.save()
        return len(rows)

    def asynchronous(self, draw: Random) -> Any:
        model = draw.choice([Tag, Token, Article, Entry, Seat])
        row, (name, value), pk = made(model, self.number(draw), draw), self.key(model, draw), some(model, draw)

        async def write() -> Any:
            rows = model._base_manager
            kind = draw.randrange(5)
            if kind == 0:
                await row.asave(force_insert=True)
            elif kind == 1:
                return await rows.filter(pk=pk).aupdate(**{name: value})
            elif kind == 2:
                return (await rows.filter(pk=pk).adelete())[0]
            elif kind == 3:
                await rows.abulk_create([row], ignore_conflicts=True)
            else:
                await row.asave()
            return None

        return async_to_sync(write)()

    def several(self, draw: Random) -> Any:
        """Two writes in a transaction, which is given up at times."""
        with transaction.atomic():
            found = [draw.choice(self.usual)(draw) for _ in range(draw.choice([1, 2, 2]))]
            if draw.random() < 0.25:
                transaction.set_rollback(True)
            if draw.random() < 0.15:
                raise GivenUp
            return found

    def kept_on(self, draw: Random) -> Any:
        """A write whose failure is swallowed, in a savepoint or without one, and another one after it."""
        found: list[Any] = []
        with transaction.atomic():
            for _ in range(2):
                try:
                    with transaction.atomic(savepoint=draw.random() < 0.7):
                        found.append(draw.choice(self.usual)(draw))
                        if draw.random() < 0.3:
                            raise GivenUp
                except Exception as error:
                    found.append(name_of(error))
        return found

    @property
    def usual(self) -> list[Callable[[Random], Any]]:
        return [
            self.create, self.create, self.save, self.save_fields, self.update, self.update_many, self.bulk_create,
            self.bulk_update, self.delete, self.delete_many, self.get_or_create, self.through, self.related, self.copy,
            self.move,
        ]  # fmt: skip


def name_of(error: Exception) -> str:
    """The name of an error, with what decides whether the twin has to meet it too."""
    name, text = type(error).__name__, str(error)
    if "lock timeout" in text:
        name += " lock timeout"
    if any(f'in relation "fuzz_{table}"' in text for table in ("annex", "hall", "place")):
        name += " of places"
    return name


class GivenUp(Exception):
    """A program gives up what it has written."""
