"""Greenlets: many requests and writers in one thread, which take turns whenever one waits for the database."""

from __future__ import annotations

import json

import pytest

from bloomguard.guards import registry
from bloomguard.state import table as state
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Product

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SITE = """
import json
from gevent import monkey, spawn, joinall, sleep
monkey.patch_all()
import django
django.setup()
from django.db import connections, transaction
from bloomguard.guards import registry
from bloomguard.lookups import guarded_lookups
from tests.shop.models import Product
from tests.support.child_settings import CURRENT

ALIAS, done, missed = CURRENT, [], []

def find(pk):
    with guarded_lookups():
        if not Product.objects.filter(pk=pk).exists():
            missed.append(pk)

def write(first):
    for number in range(8):
        pk = first + 10 * number
        with transaction.atomic(using=ALIAS):
            Product.objects.create(pk=pk)
            sleep(0)
            Product.objects.bulk_create([Product(pk=pk + 1), Product(pk=pk + 2)], batch_size=1)
        Product.objects.create(pk=pk + 3)
        Product.objects.filter(pk=pk + 3).update(id=pk + 4)
        rows = [pk, pk + 1, pk + 2, pk + 4]
        done.extend(rows)
        for each in rows:
            find(each)
    connections.close_all()

def ask():
    while len(done) < 12 * 32:
        for pk in done[-8:]:
            find(pk)
        sleep(0)
    connections.close_all()

jobs = [spawn(write, 1_000 * (each + 1)) for each in range(12)] + [spawn(ask) for each in range(4)]
joinall(jobs, raise_error=True, timeout=120)
print(json.dumps({"done": done, "missed": missed, "absent": registry["product"].verdict(5).name}))
"""


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_greenlets_share_a_process(each_database, start, build):
    """No row is denied, none waits for ever, and no write disables the guard."""
    pytest.importorskip("gevent")
    build("product")
    child = start(code=SITE)
    out, errors = child.communicate(timeout=150)
    assert child.returncode == 0, errors

    found = json.loads(out)
    assert (len(found["done"]), found["missed"], found["absent"]) == (12 * 32, [], "ABSENT")
    assert set(Product.objects.values_list("pk", flat=True)) == set(found["done"])
    assert state.table.current("product").status == ARMED
    assert all(registry["product"].verdict(pk) is Verdict.MAYBE for pk in found["done"])
