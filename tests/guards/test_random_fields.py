"""Fields drawn at random, whose own methods convert values somewhere: a guard denies no row of theirs."""

from __future__ import annotations

import html
import random
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from django.apps.registry import Apps
from django.db import DatabaseError, connections, models, transaction

from bloomguard.exceptions import RebuildError
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import Rebuild
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SHORT, LONG = 20, 2_000
LENGTHS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]

NUMBERS = [
    lambda value: value + 1,
    abs,
    lambda value: round(float(value)),
    lambda value: min(value, 5),
    lambda v: v // 2 * 2,
]
TEXTS = [
    str.upper, str.strip, str.casefold, html.escape, lambda text: text[:3], lambda text: text[::-1],
    lambda text: text.replace("-", ""), lambda text: unicodedata.normalize("NFC", text), lambda text: f"{text}!",
]  # fmt: skip
#: Of each base: how it is made, what its methods do to a value, and the values that are saved and asked for.
BASES: list[tuple[Callable[..., Any], dict[str, Any], list[Any], list[Any]]] = [
    (models.IntegerField, {}, NUMBERS, [-3, 0, 1, 4, 5, 6, 7, 7.9, "7", "8", True]),
    (models.BigIntegerField, {}, NUMBERS, [-3, 0, 1, 4, 5, 6, 7, "7", Decimal("7.5")]),
    (models.CharField, {"max_length": 30}, TEXTS, ["a", "A", "a-b", "ab", " a ", "a&b", "abcd", "é", "e\u0301", "", 7]),
    (models.SlugField, {"max_length": 30}, TEXTS, ["a", "A", "a-b", "ab", "abcd", "abc", "dcba"]),
    (models.DecimalField, {"max_digits": 8, "decimal_places": 2}, NUMBERS, [0, 1, "1.0", Decimal("1.50"), 1.5, "7", 5]),
    (
        models.UUIDField,
        {},
        [lambda value: uuid.UUID(int=value.int ^ 1), str],
        [uuid.UUID(int=number) for number in range(4)],
    ),
]
#: Methods of a field that convert a value; each gets it as its first argument.
CONVERTING = ("to_python", "get_prep_value", "get_db_prep_value", "get_db_prep_save", "from_db_value")


def tried(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, which leaves alone what it cannot convert."""

    def safe(value: Any) -> Any:
        try:
            return convert(value)
        except (TypeError, AttributeError, ValueError):
            return value

    return safe


class Drawn:
    """A field's class, and a model that has it; all of it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        base, options, conversions, self.values = self.draw.choice(BASES)
        own = {}
        self.text = base.__name__
        for name in CONVERTING:
            if self.draw.random() < 0.25:
                own[name] = self._method(base, name, tried(self.draw.choice(conversions)))
        if self.draw.random() < 0.15:
            own["pre_save"] = self._pre_save(base, tried(self.draw.choice(conversions)))
        field = type(f"Own{base.__name__}" if own else base.__name__, (base,), own) if own else base
        self.text += f" {sorted(own)}"
        where = self.draw.choice(({"unique": True}, {"primary_key": True}, {"db_index": True}))
        meta = type("Meta", (), {"apps": Apps(), "app_label": "shop", "db_table": f"shop_drawn_{seed}"})
        self.model = type(
            "Row",
            (models.Model,),
            {
                "__module__": "tests.shop.models",
                "Meta": meta,
                "code": field(**options, **where),
                "note": models.CharField(max_length=9, default=""),
            },
        )

    def _method(self, base: Any, name: str, convert: Callable[[Any], Any]) -> Callable[..., Any]:
        is_before, parent = self.draw.random() < 0.5, getattr(base, name, None)

        def method(self: Any, value: Any, *arguments: Any, **named: Any) -> Any:
            if value is None or hasattr(value, "resolve_expression"):
                return parent(self, value, *arguments, **named) if parent else value
            if is_before or parent is None:
                value = convert(value)
            if parent is not None:
                value = parent(self, value, *arguments, **named)
            return value if is_before or parent is None else convert(value)

        return method

    def _pre_save(self, base: Any, convert: Callable[[Any], Any]) -> Callable[..., Any]:
        def pre_save(self: Any, instance: Any, add: bool) -> Any:
            return convert(base.pre_save(self, instance, add))

        return pre_save

    def write(self) -> None:
        """Save a row in some way; the database may refuse it."""
        value, rows = self.draw.choice(self.values), self.model.objects
        way = self.draw.choice(("save", "create", "bulk", "update", "get_or_create"))
        try:
            with transaction.atomic(using=database.current):
                if way == "save":
                    self.model(code=value).save(force_insert=True)
                elif way == "create":
                    rows.create(code=value)
                elif way == "bulk":
                    rows.bulk_create([self.model(code=value)])
                elif way == "update" and not self.model._meta.get_field("code").primary_key:
                    rows.filter(pk=rows.values_list("pk", flat=True).first()).update(code=value)
                else:
                    rows.get_or_create(code=value)
        except (
            DatabaseError,
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            self.model.MultipleObjectsReturned,
        ):
            pass
        except Exception as error:
            if type(error).__module__ != "django.core.exceptions":
                raise


def outcome(ask: Callable[[], Any]) -> Any:
    """What it returns, or the name of its error."""
    try:
        with transaction.atomic(using=database.current):
            return ask()
    except Exception as error:
        return type(error).__name__


def found(model: Any, value: Any) -> list[Any]:
    """What some queries for one value give."""
    rows = model.objects
    return [
        outcome(lambda: [each.pk for each in rows.filter(code=value)]),
        outcome(lambda: rows.get(code=value).note),
        outcome(lambda: rows.filter(code__exact=value).exists()),
        outcome(lambda: [each.pk for each in rows.filter(code__in=[value])]),
        outcome(lambda: bool(rows.filter(code=value, note="").first())),
    ]


@contextmanager
def table_of(model: Any) -> Iterator[None]:
    with connections[database.current].schema_editor() as editor:
        editor.create_model(model)
    try:
        yield
    finally:
        with connections[database.current].schema_editor() as editor:
            editor.delete_model(model)


@pytest.mark.parametrize("fields", LENGTHS)
def test_no_row_of_a_field_is_denied(each_database, fresh, hasty, clock, fields):
    """Nor is another error raised. A rebuild may refuse the field: then the guard has no filter."""
    odd, statements, first = [], [0, 0], 1_000_000 * database.ALL.index(each_database)

    def count(execute, *arguments):
        statements[is_guarded] += 1
        return execute(*arguments)

    for seed in range(first, first + fields):
        drawn = Drawn(seed)
        with table_of(drawn.model), registered(drawn.model, name="drawn", lookup="code") as guard:
            for _ in range(3):
                drawn.write()
            try:
                Rebuild(guard, sleep=clock.sleep, probes=1_000).run()
            except RebuildError:
                continue
            for _ in range(4):
                drawn.write()
            kept = [value for (value,) in drawn.model.objects.values_list("code")]
            for value in [*drawn.values, *kept]:
                with connections[database.current].execute_wrapper(count):
                    is_guarded = False
                    expected = found(drawn.model, value)
                    is_guarded = True
                    with guarded_lookups():
                        answered = found(drawn.model, value)
                if answered != expected:
                    odd.append(f"seed {seed} {drawn.text}: {value!r}: {expected} became {answered}")
    assert not odd, "\n".join(odd[:8])
    assert statements[True] < statements[False] * 0.98  # most fields answer nothing: they convert values
