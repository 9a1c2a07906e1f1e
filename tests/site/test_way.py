"""The way of a request, and of a write, through the package: who reads the code follows it call by call."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import count, repeat

import pytest
from django.db import connection

from bench.requests import GUARDED, ROUTE, handler, requests
from bloomguard.guards import runtime, spot_checks
from tests.shop.models import Article, Product, Short
from tests.support.guarding import registered
from tests.support.ways import way_of


def test_a_request_that_is_blocked_at_its_route_takes_few_calls(build, monkeypatch):
    """15 calls in 8 files, with 12 changes of file, at most. The clock is a call, too; here it is the test's."""
    Product.objects.create(pk=7)
    build("product")
    for draws in (runtime, spot_checks):
        monkeypatch.setattr(draws, "drawn", repeat(False).__next__)
    way = way_of(partial(requests(handler(GUARDED), ROUTE % "", "404"), 8))

    assert 5 < len(way.calls) + 1 <= 15, way.calls
    assert len(way.files) <= 8, way.files
    assert way.changes <= 12, way.calls


def test_an_insert_takes_few_calls(transactional_db, build):
    """36 calls in 10 files, with 18 changes of file, at most: the statement, one add, and the COMMIT."""
    build("product")
    numbers = count(1)
    way = way_of(lambda: Product(pk=next(numbers), name="new").save(force_insert=True))

    assert 25 < len(way.calls) <= 37, way.calls
    assert len(way.files) <= 10, way.files
    assert way.changes <= 18, way.calls


def test_an_insert_into_another_table_takes_three_calls(transactional_db, build):
    """At the method, the compiler, which knows by one look-up of the guard of another table, and the cursor."""
    build("product")
    numbers = count(1)
    way = way_of(lambda: Short(slug=str(next(numbers))).save(force_insert=True))

    assert [function.rpartition(".")[2] for _, function in way.calls] == ["fetch", "execute_sql", "watch"]


@pytest.mark.parametrize("is_built", [False, True])
def test_raw_sql_takes_no_calls_for_each_guard_of_the_site(transactional_db, build, is_built):
    """A site may have hundreds of guards, nearly all of other tables; with a filter for one, or for none yet."""
    if is_built:
        build("product")
    numbers = count(1)

    def write():
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE shop_product SET name = 'new' WHERE name = '{next(numbers)}'")

    few = way_of(write)
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context(registered(Article, name=f"more-{number}"))
        many = way_of(write)

    assert 5 < len(few.calls) == len(many.calls), many.calls
