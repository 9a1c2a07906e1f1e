"""Guards with a scope on the databases of this suite; ``tests/scopes`` has whole sites."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from django.core.checks import run_checks
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from bloomguard import aget_or_load
from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.guards.keys import KeyMaker, NoScope, Scoped, marks_of, scope_of
from bloomguard.guards.places import name_of_database
from bloomguard.guards.scopes import first_alias_of
from bloomguard.rebuild import rebuild
from bloomguard.rebuild.sources import ScopedSource
from bloomguard.signals import false_negative_found
from bloomguard.state import table as state
from bloomguard.state.verdicts import ABSENT, AMBIGUOUS, MAYBE
from tests.shop.models import Article, Order, Place, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


# -- keys


@given(*[st.tuples(st.text(max_size=9), st.text(max_size=9))] * 2)
def test_no_two_scopes_have_a_key_in_common(one, other):
    """Nor does a row have one that marks a scope."""
    keys = KeyMaker([Product._meta.get_field("name")], current_scope=str)
    made = [keys.key(Scoped(scope, value)) for scope, value in (one, other)]

    assert (made[0] == made[1]) == (one == other)
    assert [scope_of(key) for key in made] == [one[0], other[0]]
    assert not {*marks_of(one[0]), *marks_of(one[0] + one[1])} & {*made}


def test_several_fields_have_one_scope():
    """A sequence or a mapping, in the current scope or in another."""
    fields = [Place._meta.get_field(name) for name in ("country", "slug")]
    keys = KeyMaker(fields, current_scope=lambda: "here")

    assert keys.key(("de", "ulm")) == keys.key(Scoped("here", {"country": "de", "slug": "ulm"}))
    assert keys.key(("de", "ulm")) != keys.key(Scoped("there", ("de", "ulm")))
    assert keys.width is None


def test_without_a_scope_there_is_no_key():
    """Not that of an empty one."""
    with pytest.raises(NoScope):
        KeyMaker([Product._meta.pk], current_scope=lambda: "here").key(Scoped(None, 7))


# -- several databases


@pytest.fixture
def everywhere(fresh, clock, monkeypatch):
    """A guard of the products in all databases of the suite: the first has product 1, the second 2."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    with registered(Product, scope="database", name="everywhere") as guard:
        for number, alias in enumerate(connections, 1):
            Product.objects.using(alias).create(pk=number)
        build(guard, clock)
        yield guard


def test_an_alias_with_the_least_settings_is_like_any_other(everywhere, monkeypatch):
    """Django needs neither a user nor test settings of an alias that a project adds while it runs."""
    least = "HOST", "PORT", "USER", "PASSWORD", "TEST"
    given = {name: value for name, value in connections.settings["default"].items() if name not in least}
    monkeypatch.setitem(connections.settings, "default", given)
    monkeypatch.setattr(connections["default"], "settings_dict", given)

    Product.objects.using("default").create(pk=77)

    assert everywhere._runtime.ask(everywhere._meta.keys.key(Scoped("default", 77))) is MAYBE
    assert "default" in everywhere.scopes()


def build(guard, clock):
    rebuild.Rebuild(guard, sleep=clock.sleep, probes=1_000).run()
    guard._runtime.active_filter.forget()
    state.table.current(guard.name)


def test_the_names_of_hundreds_of_databases_rule_out_the_others(monkeypatch):
    """Each query asks which alias comes first: comparing all their settings took longer than the query."""
    shards = {f"shard{number}": {**connections.settings["default"], "NAME": f"shard{number}"} for number in range(300)}
    shards |= {
        "again": {**shards["shard299"]},
        "by_another_user": {**shards["shard299"], "USER": "another"},
    }
    monkeypatch.setattr(connections, "settings", shards)
    with mock.patch("bloomguard.guards.scopes.name_of_database", wraps=name_of_database) as compared:
        first = [first_alias_of(alias) for alias in ("shard299", "again", "by_another_user")]

    assert first == ["shard299", "shard299", "by_another_user"]
    assert compared.call_count <= 3 * 4


def decisions(guard, alias, *values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "current", alias)
        return [guard._runtime.decide(value) for value in values]


def test_databases_of_different_servers_are_scopes(everywhere):
    """SQLite, PostgreSQL and MariaDB, if it is there."""
    for number, alias in enumerate(connections, 1):
        assert decisions(everywhere, alias, number, number % len(list(connections)) + 1) == [MAYBE, ABSENT]
        Product.objects.using(alias).create(pk=10 + number)
        assert decisions(everywhere, alias, 10 + number, 20) == [MAYBE, ABSENT]


@pytest.mark.parametrize(("model", "lookup"), [(Product, "pk"), (Order, "pk"), (Article, "slug")])
def test_a_scan_makes_the_keys_of_writes(each_database, transactional_db, model, lookup):
    """Of integers and UUIDs that the database gathers, and of all others."""
    alias = database.current
    if model is Product:
        model.objects.bulk_create([Product(pk=pk) for pk in (1, 2, 2**40)])
    else:
        model.objects.bulk_create([model(**{} if lookup == "pk" else {"slug": f"a{number}"}) for number in range(3)])
    with registered(model, scope="database", lookup=lookup, name="scanned") as guard:
        source = ScopedSource(guard, alias)
        scanned = [key for page in source.pages() for key in page.keys]

        assert len(scanned) == 3
        for value in model.objects.values_list(lookup, flat=True):
            assert guard._meta.keys.key(Scoped(alias, value)) in scanned


def test_a_table_of_two_schemas_is_in_no_database(everywhere, clock):
    """Which of them a query by this alias reads is not known."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        cursor.execute("CREATE TABLE tenant.shop_product (LIKE public.shop_product)")
    try:
        assert decisions(everywhere, "postgresql", 20) != [ABSENT]
        with pytest.raises(RebuildError, match="a table of the schema 'public', and of 'tenant'"):
            build(everywhere, clock)
    finally:
        with connections["postgresql"].cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_a_standby_is_no_scope(everywhere, clock, monkeypatch):
    """Its rows come without Django."""
    monkeypatch.setattr("bloomguard.state.connection.StateConnection.is_standby", "1")

    with pytest.raises(RebuildError, match="is a standby"):
        build(everywhere, clock)


def test_signals_add_to_the_database_of_the_row(fresh, clock, monkeypatch):
    """Whichever the router names."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    with registered(Product, scope="database", sync="signals", name="signalled") as guard:
        build(guard, clock)
        Product(pk=31).save(using="postgresql")

        assert decisions(guard, "postgresql", 31) == [MAYBE]
        assert decisions(guard, "default", 31) == [ABSENT]


def test_an_event_loop_loads_once_for_each_database(everywhere):
    """The cached value is that of the scope."""
    loaded = []

    async def load(pk):
        loaded.append(pk)
        return f"{database.current} {pk}"

    async def ask(pk):
        return [await aget_or_load("everywhere", pk, load) for _ in range(2)]

    assert asyncio.run(ask(1)) == ["default 1"] * 2
    assert asyncio.run(ask(2)) == [None] * 2
    assert loaded == [1]


def test_a_signal_has_the_plain_value(everywhere, clock):
    """Without the scope."""
    found = []
    listen = lambda value, **given: found.append(value)  # noqa: E731
    false_negative_found.connect(listen)
    database.unseen(connections["postgresql"]).execute("INSERT INTO shop_product (id, name) VALUES (41, '')")
    try:
        from bloomguard.rebuild.verify import Verification

        assert Verification(everywhere, sleep=clock.sleep).run().missing == 1
    finally:
        false_negative_found.disconnect(listen)
    assert found == [41]


# -- a schema that is not certain


def test_only_a_connection_that_sets_the_schema_itself_can_name_it(each_database, fresh, clock):
    """With any other nothing is built, every request passes, and a check says so, with the cure."""
    cure = "django_tenants.postgresql_backend" if each_database == "postgresql" else "set scope = 'database'"
    with registered(Product, scope="schema", name="mine") as guard:
        with pytest.raises(RebuildError, match=cure):
            build(guard, clock)
        assert guard._runtime.decide(7) is AMBIGUOUS
        (found,) = [each for each in run_checks() if each.id == "bloomguard.W138" and "'mine'" in each.msg]
        assert cure in found.hint
    assert "mine" not in [guard.name for guard in registry]
