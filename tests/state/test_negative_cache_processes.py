"""False positives under fire: real processes that replay them, and rows that are made meanwhile, on every store."""

from __future__ import annotations

import json
import threading
import time
from itertools import count, product

import pytest
from django.db import connection, connections
from django.test import Client

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from tests.conftest import forget
from tests.shop.models import Product
from tests.state.test_negative_cache import false_positives, first, porous, products
from tests.support import servers
from tests.support.patience import PATIENT

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh"),
]

COMMON = """
import json, sys, threading
import django
django.setup()
from django.db import connections
from django.test import Client
from bloomguard.state import negative_cache as remembered
from bloomguard.guards import registry
from bloomguard.lookups.context import guarded_lookups
from bloomguard.state.verdicts import REMEMBERED
from tests.support.child_settings import CURRENT
from tests.shop.models import Product

given = json.loads(sys.stdin.readline())
guard, values, client = registry["product"], given["values"], Client(headers={"host": "localhost"})
remembered.SECONDS = 3600.0

def row(value):
    with guarded_lookups():
        return Product.objects.filter(pk=value).exists()

def page(value):
    status = client.get(f"/products/{value}/").status_code
    assert status in (200, 404)
    return status == 200

look = {"row": row, "page": page}[given["way"]]
"""

REPLAY = """
from bloomguard.state import table as state
state.LEASE_SECONDS = 60.0  # nothing is written, and a busy machine must not cost a query
queries = 0

def count(execute, sql, params, many, context):
    global queries
    queries += "shop_product" in sql
    return execute(sql, params, many, context)

with connections[CURRENT].execute_wrapper(count):
    found = [look(value) for _ in range(given["times"]) for value in values]
print(json.dumps([queries, any(found)]))
"""

UNDER_WRITES = """
import time
remembered.SECONDS = 60.0
queries = rounds = 0

def count(execute, sql, params, many, context):
    global queries
    queries += "shop_product" in sql
    return execute(sql, params, many, context)

ends = time.monotonic() + given["seconds"]
with connections[CURRENT].execute_wrapper(count):
    while time.monotonic() < ends or rounds < 2:
        assert not any([look(value) for value in values])
        rounds += 1
print(json.dumps([queries, rounds]))
"""

ANSWER = """
def replay():
    try:
        while not over.is_set():
            for value in values:
                look(value)
    finally:
        connections.close_all()

assert not any([look(value) for value in values])
remembered_now = sum(guard._runtime.decide(value) is REMEMBERED for value in values)
assert remembered_now > len(values) / 2, remembered_now  # on a busy machine a lease may have run out
over = threading.Event()
replaying = threading.Thread(target=replay)
replaying.start()
print("ready", flush=True)
for line in sys.stdin:
    print(int(look(int(line))), flush=True)
over.set()
replaying.join()
"""


STORES = {
    "memory": lambda: {"BACKEND": "bloomguard.stores.memory.MemoryStore"},
    "redis": lambda: {
        "BACKEND": "bloomguard.stores.redis.RedisStore",
        "OPTIONS": {"url": servers.valkey(), **PATIENT},
    },
}


@pytest.fixture(params=["file"])
def store(request, settings):
    """The store of the guard: files, unless a test says otherwise."""
    if request.param in STORES:
        settings.BLOOMGUARD = {"STORES": {"default": STORES[request.param]()}}
        forget()
    return request.param


@pytest.fixture
def found(each_database, store, monkeypatch):
    """``found(5)`` are so many absent IDs that the filter of a thousand products lets through."""
    porous(monkeypatch, "product")
    products()
    Rebuild(registry["product"], sleep=lambda seconds: None).run()
    return lambda number: false_positives(registry["product"], number)


@pytest.fixture
def replay(start):
    """Starts processes that look for ``values`` in some way."""

    def run(code, processes, **given):
        children = [start(code=COMMON + code) for _ in range(processes)]
        for child in children:
            child.stdin.write(json.dumps(given) + "\n")
            child.stdin.flush()
        return children

    return run


COSTS = {"row": 1, "page": 1}


def full(*values):
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.timeout(900)])


@pytest.mark.parametrize(
    ("each_database", "way", "number", "times"),
    [("sqlite", "page", 20, 20), *(full(*case, 100, 1_000) for case in product(["sqlite", "postgresql"], COSTS))],
    indirect=["each_database"],
)
def test_a_replay_costs_each_process_one_look(each_database, found, replay, way, number, times):
    """However often: one query for each ID and process, whoever looks for it."""
    values = found(number)
    children = replay(REPLAY, 2, values=values, way=way, times=times)
    told = [json.loads(child.communicate(timeout=800)[0]) for child in children]

    assert told == [[COSTS[way] * number, False]] * 2


class Writes(threading.Thread):
    """Creates 50 rows a second until it is told to stop."""

    def __init__(self):
        super().__init__()
        self._over = threading.Event()
        self.done = 0

    def run(self):
        began = time.monotonic()
        for pk in count(5_000_000):
            if self._over.wait(max(0.0, began + self.done / 50 - time.monotonic())):
                break
            Product.objects.create(pk=pk)
            self.done += 1
        connections.close_all()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self.join()


@pytest.mark.parametrize(
    ("each_database", "store", "number", "seconds"),
    [
        ("postgresql", "redis", 20, 2),
        full("sqlite", "file", 100, 58),
        full("postgresql", "file", 100, 58),
        full("postgresql", "redis", 100, 58),
    ],
    indirect=["each_database", "store"],
)
def test_a_replay_under_writes_costs_each_process_one_look_a_minute(found, replay, number, seconds):
    """The same while 50 rows a second are written to the table."""
    values = found(number)
    with Writes() as writes:
        children = replay(UNDER_WRITES, 2, values=values, way="page", seconds=seconds)
        told = [json.loads(child.communicate(timeout=800)[0]) for child in children]

    assert [queries for queries, _ in told] == [number] * 2
    assert all(rounds > 1 for _, rounds in told)
    assert writes.done > 10 * seconds  # a busy machine writes less


@pytest.mark.parametrize(
    ("each_database", "store", "number", "seconds"),
    [("sqlite", "memory", 20, 1), full("sqlite", "memory", 100, 58)],
    indirect=["each_database", "store"],
)
def test_a_replay_under_writes_in_memory(found, number, seconds):
    """And on the memory store, which is for one process."""
    values, queries, rounds = found(number), 0, 0

    def counted(execute, sql, *arguments):
        nonlocal queries
        queries += 'FROM "shop_product"' in sql
        return execute(sql, *arguments)

    ends = time.monotonic() + seconds
    with Writes(), connection.execute_wrapper(counted):
        while time.monotonic() < ends or rounds < 2:
            assert not any(first(value) for value in values)
            rounds += 1

    assert queries == number


@pytest.mark.parametrize(
    ("each_database", "store", "way", "races"),
    [
        ("postgresql", "file", "row", 20),
        ("postgresql", "redis", "page", 20),
        *(full(*case, 1_000) for case in product(["sqlite", "postgresql"], ["file", "redis"], COSTS)),
    ],
    indirect=["each_database", "store"],
)
def test_a_row_made_during_a_replay_is_seen_at_once(each_database, found, replay, way, races):
    """Whoever asks after the commit gets it, in every process that has just remembered that there is none."""
    values = found(races)
    children = replay(ANSWER, 2, values=values, way=way)
    for child in children:
        assert child.stdout.readline() == "ready\n", child.communicate()[1]

    false_404s = 0
    for value in values:
        Product.objects.create(pk=value)
        for child in children:
            child.stdin.write(f"{value}\n")
            child.stdin.flush()
        false_404s += [child.stdout.readline() for child in children] != ["1\n"] * 2
    ended = [(child.communicate(timeout=60)[1], child.returncode) for child in children]

    assert false_404s == 0
    assert [errors for errors, code in ended if code] == []
    assert Client().get(f"/products/{values[0]}/").status_code == 200


@pytest.mark.parametrize(
    ("each_database", "store", "races"),
    [("sqlite", "memory", 20), full("sqlite", "memory", 1_000)],
    indirect=["each_database", "store"],
)
def test_a_row_made_during_a_replay_is_seen_at_once_in_memory(found, races):
    """The same by two threads that ask, on the memory store."""
    values, made, unseen, over = found(races), set(), [], threading.Event()

    def ask():
        while not over.is_set():
            for value in values:
                was_made = value in made
                if first(value) is None and was_made:
                    unseen.append(value)
        connections.close_all()

    assert not any(first(value) for value in values)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for value in values:
        Product.objects.create(pk=value)
        made.add(value)
        unseen += [value] if first(value) is None else []
    over.set()
    for thread in threads:
        thread.join()

    assert unseen == []
