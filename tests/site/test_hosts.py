"""Two hosts whose file stores are their own, on one database: found out, never served wrongly, and told what to do."""

from __future__ import annotations

import re
import socket

import pytest

from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import ABSENT, IDENTITY, MAYBE
from tests.conftest import forget
from tests.shop.models import Product
from tests.support import database

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT_PK = 123_456_789

#: The other host: a process that thinks so, with a folder of its own. It does what it is told, a line a command.
OTHER_HOST = """
import logging, socket, sys
socket.gethostname = lambda: "web-2"
import django
django.setup()
from bloomguard.rebuild import rebuild
from bloomguard.guards import registry
from bloomguard.state import table as state
from tests.shop.models import Product
state.table.sleep = lambda seconds: None
logging.getLogger("bloomguard").addHandler(logging.StreamHandler(sys.stdout))
guard = registry["product"]
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def here(monkeypatch, build, clock):
    """This process is the host web-1; it has built the filter of 10 rows, and answers."""
    monkeypatch.setattr(socket, "gethostname", lambda: "web-1")
    database.current = "postgresql"
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 11))
    build("product")
    clock.now += 1
    assert registry["product"]._runtime.decide(ABSENT_PK) == ABSENT
    yield
    database.current = "default"


@pytest.fixture
def there(here, start, settings, tmp_path):
    """``there(command)`` runs Python on the host web-2 and returns what it printed and logged."""
    mine = settings.BLOOMGUARD
    store = {**mine["STORES"]["default"], "OPTIONS": {"path": str(tmp_path / "filters of web-2")}}
    settings.BLOOMGUARD = {"STORES": {"default": store}}
    process = start(code=OTHER_HOST)
    settings.BLOOMGUARD = mine
    forget()

    def run(command: str) -> str:
        process.stdin.write(command + "\n")
        process.stdin.flush()
        said = []
        while (line := process.stdout.readline()) != "done\n":
            assert line, process.stderr.read()
            said.append(line)
        return "".join(said)

    return run


def row() -> GuardState:
    return GuardState.objects.using("postgresql").get(name="product")


def test_a_row_that_is_saved_on_the_other_host_is_denied_on_none(there, clock):
    """The host whose store is not the one that the row names answers nothing; what it saves takes the filter out of
    use, and the reason names both hosts and the cure."""
    before = there(f"print(guard.verdict({ABSENT_PK}).name)")

    said = there("Product.objects.create(pk=50)")
    clock.now += 1  # the writer waits for two

    assert before == "UNKNOWN\n"
    assert registry["product"]._runtime.decide(50) != ABSENT
    found = row()
    assert found.status == FENCED
    assert "in a store of the host web-1, and web-2 has another of its own" in found.reason
    cure = r"use a store that all hosts share, else run rebuild_filter \(process \d+ on web-2\)"
    assert re.search(f"{cure}$", found.reason)
    assert found.reason in said


def test_a_build_on_the_other_host_takes_over_and_says_so(there, clock, caplog):
    """The filter moves to the host that built it last, with a clear word on both; the first host denies nothing from
    then on, and what it saves takes the filter out of use."""
    taken = there("rebuild.Rebuild(guard, sleep=lambda seconds: None).run()")
    clock.now += 1

    assert "in a store of the host web-1, and web-2 has another of its own" in taken
    assert "use a store that all hosts share" in taken
    assert there(f"print(guard.verdict({ABSENT_PK}).name, guard.verdict(1).name)") == "ABSENT MAYBE\n"
    assert (row().status, row().host) == (ARMED, "web-2")
    assert {registry["product"]._runtime.decide(pk) for pk in (ABSENT_PK, 1, 2)} <= {IDENTITY, MAYBE}
    assert registry["product"]._runtime.decide(ABSENT_PK) == IDENTITY
    assert "in a store of the host web-2, and web-1 has another of its own" in caplog.text

    Product.objects.create(pk=60)
    there("state.table.forget()")

    assert row().status == FENCED
    assert there("print(guard.verdict(60).name)") == "UNKNOWN\n"


def test_one_host_that_was_restarted_is_told_to_rebuild(here, build, clock, caplog, settings):
    """The same host with another folder has no other host to blame."""
    store = settings.BLOOMGUARD["STORES"]["default"]
    folder = store["OPTIONS"]["path"]
    folder.rename(folder.with_name("former"))
    (folder / "product").mkdir(parents=True)
    (folder / "product" / "left.filter").touch()
    forget()

    assert registry["product"]._runtime.decide(ABSENT_PK) == IDENTITY
    assert f"in another store than the folder {folder}, or before this host was restarted; run" in caplog.text
    Rebuild(registry["product"], sleep=clock.sleep).run()
    clock.now += 1
    assert registry["product"]._runtime.decide(ABSENT_PK) == ABSENT
