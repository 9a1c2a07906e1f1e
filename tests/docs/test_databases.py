"""What the page on databases and tenants warns of is so; where that changes, the page has to."""

from __future__ import annotations

import pytest
from django.db import connections

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.state import table as state
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def schema(monkeypatch):
    """``schema("tenant")`` puts a tenant's schema before the shared one, ``schema()`` takes it away."""
    monkeypatch.setattr(database, "current", "postgresql")

    def run(sql):
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(sql)

    def use(*names):
        run(f"SET search_path TO {', '.join([*names, 'public'])}")

    run("CREATE SCHEMA tenant")
    run("CREATE TABLE tenant.shop_product (LIKE public.shop_product INCLUDING ALL)")
    yield use
    use()
    run("DROP SCHEMA tenant CASCADE")


def test_a_rebuild_reads_one_database(build):
    """Writes to another one go to the filter, and are gone from it by the next build."""
    Product.objects.create(pk=1)
    Product.objects.using("postgresql").create(pk=2)
    build("product")
    Product.objects.using("postgresql").create(pk=3)

    assert [registry["product"].verdict(pk) for pk in (1, 2, 3)] == [Verdict.MAYBE, Verdict.ABSENT, Verdict.MAYBE]


def test_a_table_of_several_schemas_is_refused(build, schema):
    """The tenants' tables have one name, and so one filter: a build of the rows that one of them has ends it."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("ALTER TABLE tenant.shop_product RENAME TO later")
    build("product")
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("ALTER TABLE tenant.later RENAME TO shop_product")
    schema("tenant")
    Product.objects.create(pk=50)
    schema()

    with pytest.raises(RebuildError, match="a table of the schema 'public', and of 'tenant'"):
        build("product")

    registry["product"]._runtime.active_filter.forget()
    assert registry["product"].verdict(50) is Verdict.UNKNOWN
    assert state.table.current("product").status == FENCED
