"""One name for several tables: a guard without a scope answers nothing unless it is certain which one is meant."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db import connections

from bloomguard.guards import registry
from bloomguard.guards.places import databases_of
from bloomguard.rebuild import Rebuild
from bloomguard.state import schemas
from bloomguard.state import table as state
from bloomguard.state.table import ARMED
from bloomguard.verdicts import ABSENT, AMBIGUOUS, MAYBE
from tests.shop.models import Product
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def run(*statements):
    with connections["postgresql"].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def tenants(monkeypatch, build, clock):
    """The products of the schema ``public``, with a filter; ``tenants()`` gives another schema the table, unseen."""
    monkeypatch.setattr(database, "current", "postgresql")
    monkeypatch.setattr(schemas.schemas, "clock", clock)
    Product.objects.create(pk=1)
    build("product")

    def add():
        with connections["postgresql"].connection.cursor() as cursor:  # past Django, as another program does
            cursor.execute("CREATE SCHEMA tenant")
            cursor.execute("CREATE TABLE tenant.shop_product (LIKE public.shop_product INCLUDING ALL)")
            cursor.execute("INSERT INTO tenant.shop_product SELECT 7, name FROM public.shop_product")

    yield add
    run("RESET search_path", "DROP SCHEMA IF EXISTS tenant CASCADE")


def decisions(*values):
    return [registry["product"]._runtime.decide(value) for value in values]


def found(*databases):
    checked = run_checks(tags=["bloomguard"], databases=databases)
    return [
        each.msg for each in checked if each.id == "bloomguard.W137" and each.msg.startswith("the guard 'product':")
    ]


def test_a_table_of_one_schema_is_answered_for(tenants, django_assert_num_queries):
    """On any search_path, and with no query on the connection of the request."""
    run("SET search_path TO pg_catalog, public")

    with django_assert_num_queries(0, using="postgresql"):
        assert decisions(1, 7) == [MAYBE, ABSENT]
    assert found("postgresql") == found() == []
    assert [each.partition("the databases 'default', 'postgresql' each")[1] for each in found("default", "postgresql")]


def test_a_table_of_two_schemas_is_not(tenants, clock):
    """Whichever of them a request reads: it passes, and ``check`` says why."""
    tenants()
    clock.sleep(schemas.SECONDS)

    assert decisions(1, 7, 8) == [MAYBE, AMBIGUOUS, AMBIGUOUS]
    run("SET search_path TO tenant, public")
    assert decisions(7, 8) == [AMBIGUOUS, AMBIGUOUS]
    assert state.table.current("product").status == ARMED
    (said,) = found("postgresql")
    assert "'shop_product' is a table of the schema 'tenant', and of 'public'" in said
    run("DROP SCHEMA tenant CASCADE")
    clock.sleep(schemas.SECONDS)
    assert decisions(7, 8) == [ABSENT, ABSENT]


def test_the_catalogue_is_read_once_a_minute(tenants, clock, monkeypatch):
    """A miss under attack costs no query of its own."""
    read = []
    execute = schemas._On.execute
    monkeypatch.setattr(schemas._On, "execute", lambda self, *given: read.append(given) or execute(self, *given))

    schemas.schemas.forget()
    for number in range(100):
        registry["product"]._runtime.decide(100 + number)

    assert len(read) == 1
    clock.sleep(schemas.SECONDS)
    decisions(7)
    decisions(1)
    assert len(read) == 2


def test_a_catalogue_that_cannot_be_read_says_nothing(tenants, monkeypatch):
    """No answer is no proof."""
    monkeypatch.setattr(schemas, "SQL", "SELECT nonsense FROM nowhere WHERE x = %s")
    schemas.schemas.forget()

    assert decisions(1, 7) == [MAYBE, AMBIGUOUS]


@pytest.mark.parametrize("home", ["default", "postgresql"])
def test_the_rows_of_another_database_are_not_those_of_the_filter(build, monkeypatch, home):
    """A router that names another database than at the build, as one that follows the request does."""
    monkeypatch.setattr(type(state.table.connection), "alias", "default")  # the state rows stay where they are
    monkeypatch.setattr(database, "current", home)
    Product.objects.create(pk=1)
    build("product")
    assert decisions(1, 7, 7) == [MAYBE, ABSENT, ABSENT]

    monkeypatch.setattr(database, "current", "default" if home == "postgresql" else "postgresql")
    assert decisions(1, 7) == [MAYBE, AMBIGUOUS]
    monkeypatch.setattr(database, "current", home)
    assert decisions(7) == [ABSENT]


def test_a_build_from_another_place_replaces_the_filter(build, monkeypatch, clock):
    """Nobody answers from one that holds the rows of another database."""
    Product.objects.create(pk=1)
    first = build("product")
    monkeypatch.setattr(type(state.table.connection), "alias", "default")
    monkeypatch.setattr(database, "current", "postgresql")

    one = Rebuild(registry["product"], sleep=clock.sleep)
    assert one.fence_replaced()
    Product.objects.create(pk=9)
    second = build("product")

    found = state.table.current("product")
    assert (found.active, found.standby, found.source) == (second.generation, "", "postgresql/public")
    assert first.generation != second.generation
    assert decisions(9, 1) == [MAYBE, ABSENT]


def test_databases_of():
    """One alias for each database in which the table may be."""
    assert databases_of(Product) == ["default", "postgresql"]
