"""Models and guards drawn at random: what a column holds, who is ``alive``, and every option of a guard."""

from __future__ import annotations

import datetime
import random
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any

from django.apps.registry import Apps
from django.db import connections, models
from django.db.models import F, Model, Q
from django.db.models.functions import Lower

from tests.support import database
from tests.support.guarding import registered

UTC, EAST = datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=5, minutes=30))
#: Of each kind of column its field, and what rows hold. Constants of ``alive`` are of the same values.
KINDS: dict[str, tuple[type[models.Field], dict[str, Any], list[Any]]] = {
    "integer": (models.IntegerField, {}, [-2, -1, 0, 1, 2, 3, 7, 500, 2**31 - 1]),
    "big": (models.BigIntegerField, {}, [-3, 0, 1, 2, 3, 40, 9_000, 2**40, 2**63 - 1, -(2**63)]),
    "text": (models.CharField, {"max_length": 30}, ["", "a", "A", "b", "B", "ä", "Ä", "a b", "7", "ab", "AB"]),
    "slug": (models.SlugField, {}, ["a", "A", "b", "a-b", "a_b", "7", "007", "x1"]),
    "uuid": (models.UUIDField, {}, [uuid.UUID(int=number << 90) for number in range(7)]),
    "decimal": (
        models.DecimalField,
        {"max_digits": 8, "decimal_places": 2},
        [Decimal(text) for text in ("-1.50", "0.00", "0.5", "1", "2.25", "100", "999999.99")],
    ),
    "date": (models.DateField, {}, [datetime.date(2024, 2, day) for day in range(23, 30)]),
    "boolean": (models.BooleanField, {}, [True, False]),
    "float": (models.FloatField, {}, [-1.5, 0.0, 0.1, 1.0, 1e10]),
    "moment": (
        models.DateTimeField,
        {},
        [datetime.datetime(2024, 2, 29, hour, 30, 0, 1, zone) for hour in (0, 12, 18, 23) for zone in (UTC, EAST)],
    ),
    "time": (models.TimeField, {}, [datetime.time(hour, 30) for hour in (0, 6, 23)]),
    "duration": (models.DurationField, {}, [datetime.timedelta(hours=hours) for hours in (-5, 0, 1, 48)]),
    "long": (models.TextField, {}, ["", "a", "A", "a b"]),
}  # fmt: skip
#: More values for columns that are looked up, so that a row seldom has a key that another one has had.
MORE: dict[str, list[Any]] = {
    "integer": [*range(10, 50)],
    "big": [2**33 + number for number in range(40)],
    "text": [one + other for one in "aAbBäÄx" for other in "aBé1"],
    "slug": [one + other for one in "aAbBxX_" for other in "aB1-z"],
    "uuid": [uuid.UUID(int=number << 40) for number in range(1, 40)],
    "decimal": [Decimal(number) / 4 for number in range(4, 44)],
    "date": [datetime.date(2025, month, day) for month in range(1, 13) for day in (1, 5, 9)],
}
KEYS = tuple(MORE)
ORDERED = set(KINDS) - {"text", "slug", "long", "uuid"}
#: Names that a database has to quote.
COLUMNS = ("select", "Odd Name", "ORDER", "größe", "a.b", "x")
#: A collation that treats A and a as equal.
CASELESS = {"sqlite": "NOCASE", "mysql": "utf8mb4_general_ci"}


def form(self: Any, text: str) -> str:
    """The same for all texts that a caseless collation treats as equal."""
    letters = unicodedata.normalize("NFKD", text).casefold().replace("\u0131", "i")
    return "".join(each for each in letters if not unicodedata.combining(each)).rstrip(" ")


def few(values: list[Any], draw: random.Random) -> Any:
    """One of these, rather of the first ones."""
    return values[int(len(values) * draw.random() ** 2)]


class Some(models.Manager):
    """Leaves out rows, as a default manager or a base manager of a project may."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(flag=True)


class Site:
    """Tables, and guards of them; all of it follows from the seed and the database."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.vendor = connections[database.current].vendor
        self.apps = Apps(["tests.shop"])
        self.caseless: set[str] = set()
        #: Names of the columns that decide who is alive.
        self.decisive: set[str] = set()
        #: Of each field's name, its kind.
        self.kinds: dict[str, str] = {"flag": "boolean", "number": "integer"}
        self.seed = seed
        self.owner = self._model("Owner", id=models.IntegerField(primary_key=True), slug=models.SlugField(unique=True))
        self.top = self._top()
        self.models = [self.top]
        if self.chance(0.3):
            self.models.append(type("Proxy", (self.top,), self._body(proxy=True)))
        if self.chance(0.5):
            sides = [self._side()] if self.chance(0.3) else []
            self.models += sides
            self.models.append(self._child("Sub", self.top, *sides))
            if self.chance(0.3):
                self.models.append(self._child("Leaf", self.models[-1]))
        self.link = self._link()
        self.models.append(self.link)
        #: Names of the columns that are looked up.
        self.looked_up = {"key"}
        self.guards = [self._guard(number) for number in range(self.draw.randint(1, 4))]

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    # -- models

    def _body(self, **meta: Any) -> dict[str, Any]:
        meta = {"apps": self.apps, "app_label": "shop", **meta}
        return {"__module__": "tests.shop.models", "Meta": type("Meta", (), meta)}

    def _model(self, name: str, *bases: type[Model], meta: Any = (), **fields: Any) -> type[Model]:
        table = f"drawn_{self.seed}_{name.lower()}"
        if self.chance(0.3):
            table = f"Drawn {self.seed}.{name}"
        elif self.vendor == "postgresql" and self.chance(0.2):
            table = f'public"."{table}'
        return type(name, bases or (models.Model,), {**self._body(db_table=table, **dict(meta)), **fields})

    def _field(self, name: str, kind: str, **options: Any) -> models.Field:
        cls, usual, values = KINDS[kind]
        self.kinds[name] = kind
        if self.chance(0.25):
            options["db_column"] = f"{self.draw.choice(COLUMNS)}{name}"
        if not options.get("primary_key"):
            options.setdefault("null", self.chance(0.4))
            if kind != "long" and self.chance(0.3):
                options["db_default" if self.chance(0.6) else "default"] = self.draw.choice(values)
        if kind in ("text", "slug") and self.vendor in CASELESS and self.chance(0.4):
            options["db_collation"] = CASELESS[self.vendor]
            self.caseless.add(name)
        return cls(**usual, **options)

    def _columns(self, prefix: str, count: int) -> dict[str, models.Field]:
        kinds = [self.draw.choice(KEYS if number % 2 else list(KINDS)) for number in range(count)]
        return {
            f"{prefix}{number}": self._field(f"{prefix}{number}", kind, unique=kind in KEYS and self.chance(0.3))
            for number, kind in enumerate(kinds)
        }

    def _top(self) -> type[Model]:
        fields: dict[str, Any] = {
            "flag": models.BooleanField(**self.draw.choice([{"db_default": True}, {"default": False}, {"null": True}])),
            "number": models.IntegerField(null=True, db_default=1),
            **self._columns("t", 4),
        }
        if self.chance(0.4):
            on_delete = self.draw.choice([models.CASCADE, models.SET_NULL])
            to = {"to_field": "slug"} if self.chance(0.5) else {}
            fields["owner"] = models.ForeignKey(self.owner, on_delete, null=True, related_name="rows", **to)
        key = self.draw.choice(("auto", "auto", "one", *KEYS))
        if key == "one":
            fields["who"] = models.OneToOneField(self.owner, models.CASCADE, primary_key=True, related_name="row")
        elif key != "auto":
            fields["key"] = self._field("key", key, primary_key=True)
        if self.chance(0.4):
            output = models.IntegerField(null=True)
            fields["twice"] = models.GeneratedField(expression=F("number") * 2, output_field=output, db_persist=True)
            self.kinds["twice"] = "integer"
        meta: dict[str, Any] = {}
        if self.chance(0.3):
            meta["ordering"] = [self.draw.choice(["-number", F("t0").desc(nulls_last=True), Lower("t1")]), "pk"]
            if self.kinds["t1"] not in ("text", "slug"):
                meta["ordering"] = ["t1", "pk"]
        if self.chance(0.4):
            managers = {"some": Some(), "objects": models.Manager()}
            fields |= managers if self.chance(0.5) else dict(reversed(managers.items()))
            if self.chance(0.3):
                meta["base_manager_name"] = "some"
        return self._model("Top", meta=meta, **fields)

    def _side(self) -> type[Model]:
        """A second parent; the child's link to it has other numbers than the child's primary key."""
        self.kinds["side_key"] = "integer"
        return self._model("Side", side_key=models.IntegerField(primary_key=True), **self._columns("x", 2))

    def _child(self, name: str, parent: type[Model], *others: type[Model]) -> type[Model]:
        fields: dict[str, Any] = self._columns(name[0].lower(), 2)
        if self.chance(0.3):
            key = f"{name.lower()}_key"
            fields[key] = self._field(key, self.draw.choice(KEYS), primary_key=True)
            fields[f"up_{key}"] = models.OneToOneField(
                parent, models.CASCADE, parent_link=True, related_name=f"as_{name}"
            )
        return self._model(name, parent, *others, **fields)

    def _link(self) -> type[Model]:
        fields = {
            "row": models.ForeignKey(self.draw.choice(self.models), models.CASCADE, related_name="links"),
            "to": models.ForeignKey(self.owner, models.CASCADE, related_name="links"),
            "note": self._field("note", "text"),
            "shown": models.BooleanField(db_default=True),
        }
        self.kinds["shown"] = "boolean"
        if self.chance(0.3):
            fields["pk"] = models.CompositePrimaryKey("row", "to")
        return self._model("Link", meta={"unique_together": [("row", "to")]}, **fields)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The tables exist, and the guards are registered."""
        made = [self.owner, *(model for model in self.models if not model._meta.proxy)]
        with ExitStack() as stack:
            stack.callback(self._drop, made)
            with connections[database.current].schema_editor() as editor:
                for model in made:
                    editor.create_model(model)
            self.made = [stack.enter_context(registered(model, **options)) for model, options in self.guards]
            yield

    def _drop(self, made: list[type[Model]]) -> None:
        with connections[database.current].schema_editor() as editor:
            for model in reversed(made):
                editor.delete_model(model)

    def __str__(self) -> str:
        """The models and the guards, for people."""
        shown = []
        for model in self.models:
            fields = [f"{field.name}: {type(field).__name__} {_options(field)}" for field in model._meta.local_fields]
            meta = {**model._meta.original_attrs, "apps": None}
            shown.append(f"{model.__name__} {meta} {[base.__name__ for base in model.__bases__]}: {fields}")
        return "\n  ".join([*shown, *(f"{model.__name__} {options}" for model, options in self.guards)])

    # -- guards

    def _guard(self, number: int) -> tuple[type[Model], dict[str, Any]]:
        model = self.draw.choice(self.models)
        names = self.keys_of(model)
        lookup: Any = self.draw.choice(["pk", "pk", *names, *names])
        if len(names) > 1 and self.chance(0.3):
            lookup = tuple(self.draw.sample(names, 2))
        if model is self.link:
            lookup = self.draw.choice(["pk", ("row", "to"), ("to", "note"), "row"])
        guard: dict[str, Any] = {
            "name": f"drawn-{number}",
            "lookup": lookup,
            "filter": self.draw.choice(["auto", "auto", "bloom", "bitmap", "cuckoo", "cuckoo"]),
            "error_rate": self.draw.choice([0.001, 0.01, 0.2]),
            "capacity": self.draw.choice([None, 1_000, 20]),
            "sync": "signals" if self.chance(0.08) else "statements",
            "mode": "shadow" if self.chance(0.05) else "enforce",
            "lookups": not self.chance(0.1),
            "public": self.draw.choice([True, None, None]),
            "methods": self.draw.choice([("GET", "HEAD"), ("GET",)]),
            "routes": {f"drawn-{number}": {}},
        }
        looked_up = (lookup,) if isinstance(lookup, str) else lookup
        if guard["filter"] == "bitmap" and self.kinds.get(looked_up[0]) not in ("integer", "big", "date"):
            guard["filter"] = "cuckoo"
        if self.chance(0.7):
            guard["alive"] = self.condition(model, self.draw.choice([0, 0, 1, 1, 2]))
        pointed = self._pointed(model, looked_up)
        self.looked_up |= pointed
        is_text = any(self.kinds.get(name) in ("text", "slug") for name in pointed)
        if not self.caseless.isdisjoint(pointed) or (is_text and self.chance(0.3)):
            guard["normalize"] = form
        if self.chance(0.1) and guard["filter"] != "bitmap":
            guard |= {"scope": "database", "scopes": lambda guard: [database.current]}
        return model, guard

    def _pointed(self, model: type[Model], names: Any) -> set[str]:
        """The fields that hold the values of these."""
        found = set()
        for name in names:
            field: Any = model._meta.pk if name == "pk" else model._meta.get_field(name)
            for each in getattr(field, "fields", None) or [field]:
                while each.remote_field is not None:
                    each = each.target_field
                found.add(each.name)
        return found

    def keys_of(self, model: type[Model]) -> list[str]:
        """The columns that may be looked up."""
        return [
            field.name for field in model._meta.concrete_fields
            if self.kinds.get(field.name) in KEYS or (field.is_relation and not field.primary_key)
        ]  # fmt: skip

    # -- conditions

    def condition(self, model: type[Model], depth: int) -> Q:
        """A condition that ``alive`` may have, mostly."""
        if depth and self.chance(0.8):
            one, other = (self.condition(model, depth - 1) for _ in range(2))
            found = self.draw.choice([one & other, one | other, one | other, one ^ other])
        else:
            found = self._comparison(model)
        return ~found if self.chance(0.35) else found

    def _comparison(self, model: type[Model]) -> Q:
        field: Any = self.draw.choice(model._meta.concrete_fields)
        self.decisive.add(field.name)
        name, kind = field.name, self.kinds.get(field.name)
        links = [link.name for link in model._meta.parents.values() if link is not None]
        if field.model is not model and links and self.chance(0.2) and len(model._meta.parents) == 1:
            name = f"{links[0]}__{name}"  # the same column, by the link to the parent
        if self.chance(0.2) or kind is None:
            if field.is_relation and not field.null:
                return Q((self.draw.choice([field.name, field.attname]) + "__isnull", False))
            return Q((f"{name}__isnull", self.chance(0.5))) if self.chance(0.6) else Q((name, None))
        alike = [
            each.name for each in model._meta.concrete_fields
            if each.name != field.name and self.kinds.get(each.name) == kind
        ]  # fmt: skip
        way = self.draw.choice(["exact", "exact", "in", "order", "F", "range"])
        if way == "F" and alike:
            return Q((name, F(self.draw.choice(alike))))
        if way == "in":
            return Q((f"{name}__in", [self.constant(kind) for _ in range(self.draw.randint(2, 4))]))
        if way in ("order", "range") and kind in ORDERED | {"uuid"}:
            if way == "order":
                return Q((f"{name}__{self.draw.choice(['lt', 'lte', 'gt', 'gte'])}", self.constant(kind)))
            return Q((f"{name}__range", sorted([self.constant(kind), self.constant(kind)])))
        return Q((self.draw.choice([name, f"{name}__exact"]), self.constant(kind)))

    def value(self, name: str, draw: random.Random) -> Any:
        """A value for a column."""
        kind = self.kinds[name]
        values = KINDS[kind][2]
        return draw.choice([*values, *MORE[kind]]) if name in self.looked_up and kind in MORE else few(values, draw)

    def constant(self, kind: str) -> Any:
        value = few(KINDS[kind][2], self.draw)
        return value.isoformat() if hasattr(value, "isoformat") else value


def _options(field: Any) -> dict[str, Any]:
    return {name: value for name, value in field.deconstruct()[3].items() if name not in ("max_length", "related_name")}
