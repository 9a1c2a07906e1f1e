"""The rows of a rebuild come from the primary, whichever server a pooler leads the project's connection to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from bloomguard.exceptions import RebuildError
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, rebuild
from bloomguard.state import table as states
from tests.shop.models import Place, Product, Short
from tests.support import database, servers
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(scope="module")
def primary() -> servers.PostgreSQL:
    return servers.PostgreSQL()


@pytest.fixture(scope="module", params=["a standby", "another server"])
def replica(request: pytest.FixtureRequest, primary: servers.PostgreSQL, django_db_blocker: Any) -> dict[str, str]:
    """It has the tables of the primary, and no row that the tests write."""
    with use(primary.settings), django_db_blocker.unblock():
        call_command("migrate", database="postgresql", run_syncdb=True, verbosity=0)
    primary.replicate()
    return primary.run_replica(is_promoted=request.param == "another server")


@contextmanager
def use(settings: dict[str, str]) -> Iterator[None]:
    """The tests' PostgreSQL is this one."""
    connection = connections["postgresql"]
    connection.close()
    before = dict(connection.settings_dict)
    connection.settings_dict.update(settings)
    try:
        yield
    finally:
        connection.close()
        states.table.forget()
        connection.settings_dict.clear()
        connection.settings_dict.update(before)


@pytest.fixture
def led_away(primary, replica, fresh, clock, monkeypatch) -> Iterator[Callable[[float], None]]:
    """A ``sleep`` of rebuilds, after which a pooler leads the project's connection to the replica."""
    monkeypatch.setattr(database, "current", "postgresql")
    connection = connections["postgresql"]
    given = connection.get_connection_params

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        connection.close()
        found = {name.lower(): replica[name] for name in ("HOST", "PORT")}
        monkeypatch.setattr(connection, "get_connection_params", lambda: given() | found)

    with use(primary.settings):
        yield sleep
        for model in (Product, Short, Place, GuardState):
            primary.run(f"TRUNCATE {model._meta.db_table} CASCADE")


@pytest.mark.parametrize("barrier", ["barrier", "no barrier"])
@pytest.mark.parametrize(
    ("row", "guarding"),
    [
        (Product(pk=1), {}),
        (Short(slug="a"), {"lookup": "slug"}),
        (Place(country="a", slug="b"), {"lookup": ("country", "slug")}),
        (Product(pk=1), {"filter": "cuckoo"}),
    ],
    ids=["integers", "texts", "several fields", "a filter that counts"],
)
def test_no_row_is_read_elsewhere(row, guarding, barrier, led_away, monkeypatch):
    """A replica lacks rows, and shows no transaction that is writing: such a filter would deny what exists."""
    if barrier == "no barrier":  # the connection may be led away just after it, and after the look at the table
        monkeypatch.setattr(rebuild, "wait_for_writers", lambda *arguments: None)
        monkeypatch.setattr(Rebuild, "refuse", lambda self: None)
    row.pk = row.pk if isinstance(row, Product) else None
    row.save(force_insert=True)
    with registered(type(row), name="led-away", **guarding) as guard:
        with pytest.raises(RebuildError, match="read from a standby, or another server"):
            Rebuild(guard, sleep=led_away).run()

        assert not states.table.current("led-away").generations
