"""A backend whose connections do not let bloomguard see each statement: no filter is built on it."""

from __future__ import annotations

import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.backends.utils import CursorWrapper

from bloomguard.exceptions import RebuildError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild, backends
from bloomguard.state.verdicts import Verdict
from bloomguard.writes.raw import watch
from tests.shop.models import Product
from tests.support import database

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("each_database"),
]


class Bare(CursorWrapper):
    """As a backend may make them that measures statements by itself."""

    def execute(self, sql, params=None):
        return self._execute(sql, params)


class BareForMany(CursorWrapper):
    """One way is overlooked."""

    def executemany(self, sql, param_list):
        return self._executemany(sql, param_list)


@pytest.mark.parametrize("cursors", [Bare, BareForMany])
def test_cursors_that_call_no_wrappers_are_refused(fresh, monkeypatch, cursors):
    """Their raw SQL would be overlooked, and its rows answered 404."""
    backend = type(connections[database.current])
    monkeypatch.setattr(backend, "make_cursor", lambda self, cursor: cursors(cursor, self))

    with pytest.raises(RebuildError, match="call no execute_wrapper"):
        Rebuild(registry["product"]).run()


def test_a_connection_that_is_opened_unseen_is_refused(monkeypatch):
    """A backend may open it without the signal, by which bloomguard gets to know it."""
    monkeypatch.setattr(connection_created, "send", lambda **named: None)

    assert not backends.calls_wrappers(connections[database.current])


def test_what_wraps_or_counts_is_accepted(monkeypatch):
    """Most packages do no more."""
    backend, counted = type(connections[database.current]), []

    class Counting(CursorWrapper):
        def execute(self, sql, params=None):
            counted.append(sql)
            return super().execute(sql, params)

    monkeypatch.setattr(backend, "make_cursor", lambda self, cursor: Counting(cursor, self))

    assert backends.calls_wrappers(connections[database.current])
    assert backends._PROBE in counted


@pytest.mark.parametrize("place", ["wrapper", "cursor"])
def test_what_adds_comments_is_accepted(fresh, clock, monkeypatch, place):
    """As packages do for a trace, also in management commands; and the filter follows what is written with them."""
    backend = type(connections[database.current])

    def comment(execute, sql, *rest):
        return execute(f"{sql} /*command='rebuild_filter'*/", *rest)

    class Commenting(CursorWrapper):
        def execute(self, sql, params=None):
            return super().execute(f"/*command='rebuild_filter'*/ {sql}", params)

    def add_wrapper(connection, **named):
        connection.execute_wrappers.append(comment)

    connections[database.current].close()
    if place == "cursor":
        monkeypatch.setattr(backend, "make_cursor", lambda self, cursor: Commenting(cursor, self))
    else:
        connection_created.connect(add_wrapper)
    try:
        Rebuild(registry["product"], sleep=clock.sleep).run()
        Product.objects.create(pk=7)
    finally:
        connection_created.disconnect(add_wrapper)
        connections[database.current].execute_wrappers[:] = [watch]

    assert [registry["product"].verdict(pk) for pk in (7, 8)] == [Verdict.MAYBE, Verdict.ABSENT]


def test_a_database_whose_writers_cannot_be_waited_for_is_refused(fresh, monkeypatch):
    """Rows of a transaction that was open before the announcement are in no scan, and nobody would add them."""
    monkeypatch.setattr(connections[database.current], "vendor", "oracle")

    with pytest.raises(RebuildError, match="no way is known to wait for open transactions"):
        Rebuild(registry["product"]).run()
