"""Nothing waits without a limit, and the limits are those of the page."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import bloomguard
from bloomguard.exceptions import RebuildError, StoreUnavailable
from bloomguard.rebuild import locks
from bloomguard.stores import turn

ROOT = Path(bloomguard.__file__).parent
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "migrations" not in path.parts)

#: Whoever waits there is no request and no write: it is the work of the thread itself, done by another one, or the
#: probes of a start, which send requests to the site's own views.
WITHOUT_A_LIMIT = {
    ("lookups/cache_aside.py", "flight.done.result()"),  # of a future that is done
    ("door/probes.py", "pool.submit(_as_probe, run).result()"),
    ("rebuild/pages.py", "pending.result()"),
}
#: What may take long, and is done under no lock but one that is waited for with a limit.
SLOW = {"open", "execute", "trip", "names", "create", "drop", "import_string", "sleep", "query", "connect", "stat"}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def is_limited(call: ast.Call, awaited: set[ast.AST]) -> bool:
    """A lock is tried, or tried for so long; an event loop's is awaited, which is looked at below."""
    return any(word.arg in ("timeout", "blocking") for word in call.keywords) or call in awaited


@pytest.mark.parametrize("file", FILES)
def test_no_call_waits_without_a_limit(file):
    """Locks have a timeout or are only tried; ``flock`` never blocks; nor does a wait for a thread or an event."""
    tree, found = parsed(file), []
    awaited = {node.value for node in ast.walk(tree) if isinstance(node, ast.Await)}
    # As a task, for which `asyncio.wait` waits with a limit: that call is looked at like any other.
    awaited |= {arg for call in calls(tree) if name_of(call) == "ensure_future" for arg in call.args}
    for call in calls(tree):
        name, words = name_of(call), ast.unparse(call)
        if (
            (name == "acquire" and not is_limited(call, awaited))
            or (name == "flock" and "LOCK_NB" not in words and "LOCK_UN" not in words)
            or (name in ("join", "wait", "result") and not (call.args or call.keywords or call in awaited))
        ):
            found.append((file, words))

    assert set(found) <= WITHOUT_A_LIMIT


@pytest.mark.parametrize("file", FILES)
def test_nobody_holds_a_lock_while_he_waits_for_a_disk_or_a_server(file):
    """In a plain ``with lock:``, which others wait for without a limit, there is nothing that takes long."""
    blocks = [node for node in ast.walk(parsed(file)) if isinstance(node, ast.With)]
    plain = [
        block
        for block in blocks
        for item in block.items
        if re.fullmatch(r"(self\.)?_lock", ast.unparse(item.context_expr))
    ]
    slow = [
        ast.unparse(call) for block in plain for part in block.body for call in calls(part) if name_of(call) in SLOW
    ]

    assert slow == []


def test_every_connection_of_our_own_has_limits():
    """Only the connection that sets them opens one."""
    opening = {file for file in FILES for call in calls(parsed(file)) if name_of(call) == "create_connection"}

    assert opening == {"state/own_connections.py"}


def test_a_thread_does_not_wait_for_ever_for_one_that_opens_a_filter(monkeypatch):
    """It hears that the store is not to be had just now."""
    monkeypatch.setattr("bloomguard.stores.OPEN_SECONDS", 0.01)
    lock = threading.Lock()

    with (
        lock,
        pytest.raises(StoreUnavailable, match="another thread has been opening a filter"),
        turn(lock, "opening a filter"),
    ):
        raise AssertionError("two at once")
    with turn(lock, "opening a filter"):
        assert lock.locked()
    assert not lock.locked()


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_rebuild_does_not_wait_for_ever_for_a_transaction(each_database, monkeypatch):
    """A transaction that is never ended is an error that says so, after an hour."""
    slept: list[float] = []
    monkeypatch.setattr(locks, "_postgresql_writers", lambda using, tables, proof: {"1/1"})
    if each_database != "postgresql":
        pytest.skip("SQLite waits as long as its own timeout says")

    with pytest.raises(RebuildError, match="has been open for 3,600 s"):
        locks.wait_for_writers("postgresql", {"shop_product"}, slept.append)

    assert sum(slept) == pytest.approx(3_600)


#: Each row of the page, by words of its second cell: where the figure is said in the code.
LIMITS = {
    "another thread or task that reads the state rows": [("state/table.py", "RENEWAL_PATIENCE")],
    "a connection to the database of the state rows": [("state/connection.py", "CONNECT_SECONDS")],
    "the state rows to be read": [("state/connection.py", "READ_SECONDS"), ("state/connection.py", "READ_PATIENCE")],
    "the state row to be changed": [("state/connection.py", "CHANGE_SECONDS")],
    "PostgreSQL's catalogue of schemas, once a minute": [
        ("state/connection.py", "CONNECT_SECONDS"),
        ("state/connection.py", "READ_SECONDS"),
    ],
    "the database": [("state/connection.py", "CONNECT_SECONDS"), ("state/connection.py", "READ_SECONDS")],
    "another thread's statement on the state rows": [("state/connection.py", "CONNECT_SECONDS")],
    "another thread that opens a filter or makes a store": [("stores/__init__.py", "OPEN_SECONDS")],
    "another thread that looks through the URLs, once for each URLconf": [("routes/table.py", "_PATIENCE")],
    "the file store's lock, in this process and in others": [("stores/disk.py", "LOCK_SECONDS")],
    "the file store's lock, when its process looks into a shard of a filter (at most 32 MiB) for the first time": [
        ("stores/disk.py", "LOCK_SECONDS")
    ],
    "a page of metrics in files": [("stores/disk.py", "LOCK_SECONDS")],
    "a Redis server": [
        ("stores/redis/store.py", "connect_timeout"),
        ("stores/redis/store.py", "read_timeout"),
        ("stores/redis/store.py", "add_timeout"),
        ("stores/redis/store.py", "bulk_timeout"),
    ],
    "figures from a Redis server": [
        ("stores/redis/store.py", "connect_timeout"),
        ("stores/redis/store.py", "add_timeout"),
    ],
    "the states of all guards": [("contrib/health.py", "_LOOP_SECONDS")],
    "one of 16 connections": [("stores/redis/store.py", "read_timeout")],
    "a fence to be known to every process": [("state/table.py", "2 * LEASE_SECONDS")],
    "its last metrics": [("metrics.py", "_PATIENCE")],
    "a heartbeat that its thread is just sending": [("rebuild/locks.py", "HEARTBEAT_SECONDS")],
    "every process to know of the new filter": [("state/table.py", "2 * LEASE_SECONDS")],
    "transactions that wrote the table before": [("rebuild/locks.py", "MAX_WAIT_SECONDS")],
    "a rebuild's lock, while such a transaction is open": [("rebuild/locks.py", "_WRITE_LOCK_SECONDS")],
}


def figure(file: str, name: str) -> float:
    """A number as the source says it: tests are more patient than sites."""
    times = 2 if name.startswith("2 * ") else 1
    name, tree = name.removeprefix("2 * "), parsed(file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = zip(target.elts, node.value.elts) if isinstance(target, ast.Tuple) else [(target, node.value)]
                for each, value in pairs:
                    if ast.unparse(each) == name:
                        return float(ast.literal_eval(value)) * times
        if isinstance(node, ast.FunctionDef):
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
                if argument.arg == name and default is not None:
                    return float(ast.literal_eval(default))
    raise AssertionError(f"{file} says no {name}")


def rows() -> dict[str, str]:
    """The table: what is waited for, and all that is said of it."""
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text().split("\n## Waits\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and cells[0] not in ("who waits", "---"):
            found[cells[1]] = found.get(cells[1], "") + cells[2]
    return found


def test_each_wait_on_the_page_is_the_codes():
    """The page says every limit as the code has it, and nothing that the code has not."""
    page = rows()

    assert set(page) == set(LIMITS)
    for what, places in LIMITS.items():
        for place in places:
            assert f"{figure(*place):,g}" in page[what], (what, place)
