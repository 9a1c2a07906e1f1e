"""A new generation is published only if rows that are read anew are in it, and few absent keys are."""

from __future__ import annotations

import uuid
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from django.db import connections

from bloomguard.exceptions import RebuildError
from bloomguard.guards import Guard, registry
from bloomguard.rebuild import Rebuild, verify
from bloomguard.rebuild import source as sources
from bloomguard.rebuild.plan import open_active
from bloomguard.rebuild.source import Source
from bloomguard.rebuild.sources import Sources
from bloomguard.rebuild.verify import PublishCheck, Verification
from bloomguard.state import table as states
from bloomguard.stores import Generation, stores
from tests.rebuild.test_source import Tag, TagGuard
from tests.shop.guards import ProductGuard
from tests.shop.models import Article, Order, Product, Ticket
from tests.support import database

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock", "each_database"),
]


def insert_unseen(pk: int) -> None:
    """A row as another program writes it."""
    with closing(database.unseen(connections[database.current])) as cursor:
        cursor.execute(f"INSERT INTO shop_product (id, name) VALUES ({pk}, '')")


def rebuild(name: str, clock, **options):
    return Rebuild(registry[name], sleep=clock.sleep, **options).run()


def test_rows_are_read_again_and_told(clock):
    """A small table is read again as a whole, and the report says how many rows that were."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 2_001))

    assert rebuild("product", clock).rows_verified == 2_000


def test_an_empty_table_has_nothing_to_verify(clock):
    """No rows: no complaint."""
    assert rebuild("product", clock).rows_verified == 0


def test_the_marks_of_scopes_are_no_stale_keys(clock, monkeypatch):
    """A filter's size is an estimate: of few rows and many marks it may be smaller than the number of the marks."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 4))
    guard = registry["product"]
    rebuild("product", clock)
    monkeypatch.setattr(Sources, "marks", lambda self: [b"mark"] * 128)
    monkeypatch.setattr(type(open_active(guard, states.table.current("product"))), "approximate_size", lambda self: 127)

    assert Verification(guard).run().stale_share == 0.0


def test_a_row_that_came_behind_the_scan_unseen_stops_the_build(clock, monkeypatch):
    """A row that another program wrote during the build, behind the scan, is found missing: the figures are told, no
    ID is, and what was served is served on."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    first = rebuild("product", clock)

    def progress(done, total):
        if done == 100:  # the scan has come to its end
            insert_unseen(777)

    # The first page is full, so the scan asks for one more: it must not find the row there.
    pages = Source.pages
    monkeypatch.setattr(Source, "pages", lambda self: islice(pages(self), 1))

    with pytest.raises(RebuildError, match=r"product: of [\d,]+ rows that were read again, [12] are not in") as raised:
        rebuild("product", clock, progress=progress)

    assert "777" not in str(raised.value)
    assert stores["default"].names("product") == [first.generation]
    assert states.table.current("product").active == first.generation


def test_rows_that_are_missing_because_of_a_fence_are_reported_with_its_reason(clock, monkeypatch):
    """As by an old version that still runs: the message names the process, so that it can be stopped."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    guard = registry["product"]

    def progress(done, total):
        if done == 100:
            states.table.fence("product", "process 4711 wrote to its table")
            insert_unseen(777)

    pages = Source.pages
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    monkeypatch.setattr(Source, "pages", lambda self: islice(pages(self), 1))

    with pytest.raises(RebuildError, match=r"its state row changed during the build \(process 4711 wrote"):
        Rebuild(guard, sleep=clock.sleep, progress=progress).run()


@pytest.mark.parametrize("name", ["product", "order", "article"])
def test_a_scan_that_skips_rows_is_found_out(name, clock, monkeypatch):
    """Were a page of the scan left out, rows read at random places would show it: integers, UUIDs and text."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 200)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    Order.objects.bulk_create(Order(pk=uuid.UUID(int=number << 100)) for number in range(1, 1_001))
    Article.objects.bulk_create(Article(slug=f"article-{number}") for number in range(1_000))
    pages = Source.pages
    monkeypatch.setattr(Source, "pages", lambda self: list(pages(self))[1:])

    with pytest.raises(RebuildError, match=f"{name}: of .* were read again, .* not in the new generation"):
        rebuild(name, clock)

    assert stores["default"].names(name) == []


def test_rows_are_read_at_random_places(clock, monkeypatch):
    """Of a large table some runs of rows are read, not twice the same, from every part of it."""
    monkeypatch.setattr(verify, "RANDOM_ROWS", 400)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 4_001))
    proofs = [PublishCheck(Source(registry["product"]), clock.sleep) for _ in range(2)]

    one, other = [sorted(values[0] for values in each._values()) for each in proofs]

    assert one != other
    assert len(one) == len(set(one)) == 400
    assert all(any(start < pk <= start + 100 for pk in one) for start in range(0, 4_000, 100))


def test_rows_that_lie_unevenly_are_read_from_both_ends(clock, monkeypatch):
    """Where few parts of the range hold rows, the rest of the sample is the first and the last rows."""
    monkeypatch.setattr(verify, "RANDOM_ROWS", 400)
    Product.objects.bulk_create(Product(pk=pk) for pk in [*range(1, 501), 1 << 60])

    found = {values[0] for values in PublishCheck(Source(registry["product"]), clock.sleep)._values()}

    assert {1, 2, 190, 499, 500, 1 << 60} <= found


def test_other_primary_keys_are_read_from_both_ends(clock, monkeypatch):
    """A primary key that is neither an integer nor a UUID has no random places."""
    monkeypatch.setattr(sources, "kind_of", lambda field: "text")
    monkeypatch.setattr(verify, "RANDOM_ROWS", 20)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))

    found = sorted(values[0] for values in PublishCheck(Source(registry["product"]), clock.sleep)._values())

    assert found == [*range(1, 11), *range(91, 101)]


@pytest.mark.parametrize("odd", ["NULL", "'x'", "1.5"])
def test_a_table_whose_primary_key_is_none_is_verified(odd, each_database, clock):
    """It may be older than its model; and SQLite takes texts there, if nobody is looking."""
    if odd != "NULL" and each_database != "sqlite":
        pytest.skip("the others take none")
    with connections[database.current].cursor() as cursor:
        cursor.execute("CREATE TABLE tag (id BIGINT, text VARCHAR(50) UNIQUE)")
        cursor.execute(f"INSERT INTO tag VALUES (1, 'a'), (2, 'b'), ({odd}, 'c'), (4, 'd')")
    try:
        assert set(PublishCheck(Source(TagGuard(Tag)), clock.sleep)._keys()) >= {b"a", b"b", b"d"}
    finally:
        with connections[database.current].cursor() as cursor:
            cursor.execute("DROP TABLE tag")


def test_a_primary_key_of_two_columns_has_two_ends(each_database):
    """The first and the last row are found by it."""
    Ticket.objects.bulk_create(Ticket(event=event, number=7 - event) for event in range(1, 4))
    source = Source(type("TicketGuard", (Guard,), {})(Ticket))

    assert (source.end("pk"), source.end("-pk")) == ((1, 6), (3, 4))


def test_all_rows_that_were_inserted_meanwhile_are_read(clock, monkeypatch):
    """Every row above the greatest key of before is read, however many are read at random."""
    monkeypatch.setattr(verify, "RANDOM_ROWS", 10)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    made = PublishCheck(Source(registry["product"]), clock.sleep)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(101, 301))

    assert set(range(101, 301)) <= {values[0] for values in made._values()}


def test_only_living_rows_are_asked_for(clock):
    """Rows that exist for nobody need not be in the generation."""
    Article.objects.bulk_create(Article(slug=f"article-{number}", deleted=number % 2 == 0) for number in range(100))

    report = rebuild("article", clock)

    assert report.rows_verified == report.rows == 50


def test_a_row_whose_add_is_on_its_way_is_waited_for(clock, monkeypatch):
    """With ``sync = "signals"`` a row shows before its key is added: it is asked for once more a second later."""
    monkeypatch.setattr(ProductGuard, "sync", "signals")
    Product.objects.create(pk=1)
    guard = registry["product"]
    slept = []

    def sleep(seconds):
        clock.sleep(seconds)
        slept.append(seconds)
        if seconds == 1.0:
            guard._runtime.active_filter.add([guard._meta.keys.key(5)])

    def progress(done, total):
        insert_unseen(5)

    report = Rebuild(guard, sleep=sleep, progress=progress).run()

    assert report.rows_verified == 2
    assert slept == [2.0, 1.0]


@pytest.mark.parametrize("kind", ["bloom", "bitmap"])
def test_more_errors_than_promised_stop_the_build(kind, clock, monkeypatch):
    """A generation that lets too many absent keys pass, however that came, is not published, and the rates are told."""
    monkeypatch.setattr(ProductGuard, "filter", kind)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    first = rebuild("product", clock)
    guard = registry["product"]

    def progress(done, total):
        building = stores["default"].open(
            "product", states.table.current("product").building, guard._runtime.active_filter.find_key_hash
        )
        building.add_many(np.arange(1 << 40, (1 << 40) + 20_000))

    with pytest.raises(RebuildError, match=r"lets \d+\.\d+% of absent keys pass where 0\.1000% were promised"):
        rebuild("product", clock, progress=progress)

    assert stores["default"].names("product") == [first.generation]
    assert states.table.current("product").active == first.generation


def test_rows_are_asked_for_by_the_thousand(clock, monkeypatch):
    """A trip to a store behind a network has as little time as a check: many keys take several."""
    asked: list[int] = []
    ask = Generation.might_contain_many

    def counted(self, keys):
        asked.append(len(keys))
        return ask(self, keys)

    monkeypatch.setattr(Generation, "might_contain_many", counted)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 2_501))

    assert rebuild("product", clock).rows_verified == 2_500
    assert asked == [1_000, 1_000, 500]
