"""A project may let an alias lead to another database while it runs: no filter says anything about its rows."""

from __future__ import annotations

import pytest
from django.db import connections

from bloomguard.exceptions import RebuildError
from bloomguard.guards import doubts, registry
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def site(each_database, shop, monkeypatch):
    """The connection of a process that is no test run, with product 7 and a filter."""
    connection = connections[database.current]
    connection.ensure_connection()
    monkeypatch.setattr(doubts, "is_test_run", lambda: False)
    assert registry["product"].verdict(8) is Verdict.ABSENT
    return connection


def is_found(pk, assert_num_queries):
    """By a query that is sent."""
    with guarded_lookups(), assert_num_queries(1, using=database.current):
        return Product.objects.filter(pk=pk).exists()


@pytest.mark.parametrize("name", ["NAME", "HOST"])
def test_no_guard_answers_for_another_database(site, name, monkeypatch, django_assert_num_queries):
    """Its rows are those of another tenant; what a filter forbids, a rebuild would do too."""
    with monkeypatch.context() as patch:
        patch.setitem(site.settings_dict, name, "another")
        assert registry["product"].verdict(8) is Verdict.UNKNOWN
        assert not is_found(8, django_assert_num_queries)
        with pytest.raises(RebuildError, match="see the log"):
            Rebuild(registry["product"])._source()

    assert registry["product"].verdict(8) is Verdict.ABSENT


def test_a_threads_connection_may_have_settings_of_its_own(site, monkeypatch, django_assert_num_queries):
    """Whoever changes them for one thread replaces them there."""
    monkeypatch.setattr(site, "settings_dict", {**site.settings_dict, "NAME": "another"})

    assert not is_found(8, django_assert_num_queries)


def test_an_alias_that_is_added_later_has_the_database_that_it_names_first(site, monkeypatch):
    """As a project does that reads its tenants from a table."""
    monkeypatch.setitem(connections.settings, "later", {"NAME": "first"})
    known = doubts.Strayed()
    assert "later" not in known
    connections.settings["later"]["NAME"] = "second"

    assert "later" in known


def test_a_test_run_may_replace_the_databases(site, monkeypatch):
    """Django's test runner does so after the start."""
    monkeypatch.setattr(doubts, "is_test_run", lambda: True)
    monkeypatch.setitem(site.settings_dict, "NAME", "test_another")

    assert site.alias not in doubts.strayed
