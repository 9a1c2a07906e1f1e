"""Which columns' changes a guard follows: every one that its key or its condition can depend on."""

from __future__ import annotations

import pytest
from django.db import connections, models
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Concat, Length, Lower
from django.test.utils import isolate_apps

from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import discards, tables, updates
from tests.shop.models import Article, Bundle, Product, Ticket
from tests.support import database
from tests.support.guarding import make_guard, registered


def generated(expression):
    return models.GeneratedField(expression=expression, output_field=models.CharField(max_length=9), db_persist=True)


class Shout(Func):
    """A function of a project's, whose text may name columns."""

    template = "upper(name)"


def shown(value):
    """The same in each process: a set has no order."""
    return " ".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Lower("name"), {"name"}),
        (Concat("name", Value("-"), "kind"), {"name", "kind"}),
        (Case(When(kind="x", name__gt="a", then=Value("y")), default=Value("z")), {"name", "kind"}),
        (Case(When(Q(kind="x") | ~Q(name=F("other")), then="code")), {"name", "kind", "other", "code"}),
        (Length("inner"), {"inner", "code"}),
        (Shout("kind"), {"id", "name", "kind", "other", "code", "inner"}),
        (Func("kind", template="upper(name)"), {"id", "name", "kind", "other", "code", "inner"}),
    ],
    ids=shown,
)
@pytest.mark.parametrize("where", ["key", "alive"])
@isolate_apps("tests.shop")
def test_a_generated_column_is_followed_to_the_end(expression, expected, where):
    """Through functions, conditions and other generated columns; all columns where an expression does not tell."""

    class Thing(models.Model):
        name = models.CharField(max_length=9)
        kind = models.CharField(max_length=9)
        other = models.CharField(max_length=9)
        code = models.CharField(max_length=9)
        inner = generated(Lower("code"))
        outer = generated(expression)

        class Meta:
            app_label = "shop"

    of_key = {"lookup": "outer"} if where == "key" else {"alive": Q(outer__gt="a")}
    guard = make_guard(Thing, name="thing", **of_key)

    found = tables.tracked_columns(guard, Thing._meta.db_table)

    assert found == expected | {"outer", "id"}


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (Article, {"lookup": "slug", "alive": Q(pk__gt=5)}, {"id", "slug"}),
        (Article, {"lookup": "slug"}, {"id", "slug"}),
        (Ticket, {"lookup": "note"}, {"note", "event", "number"}),
        (Ticket, {"lookup": "pk"}, {"event", "number"}),
        (Article, {"lookup": "slug", "alive": Q(nothing=1)}, {"id", "slug", "deleted"}),
    ],
    ids=shown,
)
def test_the_primary_key_counts_whatever_it_is_called(model, options, expected):
    """Also without a condition on it, as a scan may go by it; all columns where a condition names none."""
    assert tables.tracked_columns(make_guard(model, name="one", **options), model._meta.db_table) == expected


def test_the_column_of_a_parent_that_a_child_refers_to_counts():
    """A parent that gets the number which a child has already named is a new row of the child."""
    assert tables.tracked_columns(make_guard(Bundle, name="one", lookup="name"), "shop_product") == {"id", "name"}


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_big_update_is_added_in_pieces(each_database, fresh, clock, monkeypatch, kind):
    """Few of its rows are in memory at a time. MariaDB returns none of an UPDATE: beyond the limit it fences."""
    monkeypatch.setattr(discards, "MOST_ROWS", 10)
    monkeypatch.setattr(updates, "PIECE", 4)
    with registered(Product, name="big", lookup="name", filter=kind) as guard:
        Product.objects.bulk_create([Product(name=f"n{number}") for number in range(10)])
        Rebuild(guard, sleep=clock.sleep).run()

        assert Product.objects.update(name=Concat("name", Value("-a"))) == 10
        assert [guard.verdict(f"n{number}-a") for number in range(10)] == [Verdict.MAYBE] * 10
        Product.objects.bulk_create([Product(name=f"n{number}-a") for number in range(10, 25)])
        assert Product.objects.update(name=Concat("name", Value("-b"))) == 25

        fences = connections[database.current].vendor == "mysql"
        assert state.table.current("big").status == (FENCED if fences else ARMED)
        assert Verdict.ABSENT not in [guard.verdict(f"n{number}-a-b") for number in range(25)]
        assert guard.verdict("n25-a-b") is (Verdict.UNKNOWN if fences else Verdict.ABSENT)
        assert Product.objects.using(database.current).filter(name__endswith="-b").count() == 25


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.parametrize("each_database", ["sqlite", "postgresql"], indirect=True)
def test_a_piece_of_a_big_update_that_cannot_be_added_fences(each_database, fresh, clock, monkeypatch):
    """Before the UPDATE is committed, and while SQLite still has rows of it to return."""
    monkeypatch.setattr(updates, "PIECE", 10)
    with registered(Product, name="big", lookup="name") as guard:
        Product.objects.bulk_create([Product(name=f"n{number}") for number in range(25)])
        Rebuild(guard, sleep=clock.sleep).run()
        add, sizes = guard._runtime.active_filter.add, []

        def add_first(keys, *args, **kwargs):
            sizes.append(len(keys))
            return len(sizes) == 1 and add(keys, *args, **kwargs)

        monkeypatch.setattr(guard._runtime.active_filter, "add", add_first)

        assert Product.objects.update(name=Concat("name", Value("-a"))) == 25

        assert sizes[:2] == [10, 10]
        assert state.table.current("big").status == FENCED
        assert Product.objects.filter(name__endswith="-a").count() == 25
