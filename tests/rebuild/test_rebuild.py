"""A rebuild: nothing that is written meanwhile is lost, and whatever stops it, what was served is served on."""

from __future__ import annotations

import signal
import socket
import sqlite3
import ssl
import threading
import uuid
from contextlib import closing, suppress
from datetime import timedelta
from unittest import mock

import pytest
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Q
from django.utils import timezone

from bloomguard.exceptions import BuilderBusy, RebuildError, StoreError
from bloomguard.guards import Guard, registry
from bloomguard.models import GuardState
from bloomguard.process import start_thread
from bloomguard.rebuild import Rebuild, locks, refusals, run_all, verify
from bloomguard.rebuild import source as sources
from bloomguard.state import table as states
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED, FENCED, State
from bloomguard.state.table import StateTable
from bloomguard.state.verdicts import ABSENT, MAYBE
from bloomguard.stores import stores
from tests.conftest import Counting, forget
from tests.shop.guards import ArticleGuard, OrderGuard, ProductGuard
from tests.shop.models import Article, Bundle, Order, Product
from tests.support import database
from tests.support.child import STEPS
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ABSENT_PK = 123_456_789


def row() -> GuardState:
    return GuardState.objects.using(database.current).get(name="product")


@pytest.fixture
def built(build, clock):
    """A guard with a hundred rows and a filter."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 101))
    report = build("product")
    clock.now += 1
    return report


def serves(clock) -> bool:
    """The guard denies what is not there, and lets every row pass."""
    clock.now += 1
    guard = registry["product"]
    passed = [guard._runtime.decide(pk) for pk in Product.objects.values_list("pk", flat=True)]
    return {*passed} == {MAYBE} and guard._runtime.decide(ABSENT_PK) == ABSENT


# -- what it makes


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("kind", ["auto", "bloom", "bitmap", "cuckoo"])
def test_a_rebuild_holds_every_row(kind, build, clock, monkeypatch):
    """Every row passes and (nearly) nothing else, after the first build and after the next."""
    monkeypatch.setattr(ProductGuard, "filter", kind)
    monkeypatch.setattr(sources, "PAGE_ROWS", 70)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(-51, 500) if pk)
    first = build("product")
    Product.objects.filter(pk__gte=300).delete()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(600, 700))
    second = build("product")
    clock.now += 1
    guard = registry["product"]

    assert (first.rows, second.rows) == (550, 450)
    assert all(guard._runtime.decide(pk) == MAYBE for pk in [*range(-51, 0), *range(1, 300), *range(600, 700)])
    assert sum(guard._runtime.decide(pk) == ABSENT for pk in range(10_000, 11_000)) > 980
    assert sum(guard._runtime.decide(pk) == ABSENT for pk in range(300, 500)) > 190


@pytest.mark.usefixtures("each_database")
def test_settings_that_cannot_be_copied_are_used_as_they_are(build, monkeypatch):
    """Such as an SSL context, as a driver may take it: the connections of a rebuild have it too."""
    Product.objects.create(pk=1)
    monkeypatch.setitem(connections[database.current].settings_dict, "CONTEXT", ssl.create_default_context())

    assert build("product").rows == 1


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_row_that_moves_to_a_page_of_before_is_not_lost(kind, clock, fresh, monkeypatch):
    """Pages go by the primary key, each at another moment: a row whose key changes meanwhile may be on none of them."""
    monkeypatch.setattr(ArticleGuard, "filter", kind)
    monkeypatch.setattr(sources, "PAGE_ROWS", 70)
    monkeypatch.setattr(verify.PublishCheck, "verify_rows", lambda *arguments: 0)  # which reads samples of large tables
    Article.objects.bulk_create(Article(slug=f"slug-{number}") for number in range(300))
    row = Article.objects.order_by("pk").last()

    def move(done, total):
        if done == 70:
            Article.objects.filter(id=row.pk).update(id=-1)

    is_built = False
    with suppress(RebuildError):  # or the build fails, and the next one reads the row where it is
        is_built = Rebuild(registry["article"], sleep=clock.sleep, progress=move).run().rows > 0

    assert Article.objects.filter(id=-1, slug=row.slug).exists()
    decide = registry["article"]._runtime.decide
    assert (decide(row.slug) != ABSENT, decide("none") == ABSENT) == (True, is_built)


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("before", [0, 1], ids=["first build", "next build"])
@pytest.mark.parametrize("field", ["name", "size"])
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_what_two_rows_exchange_during_a_scan_is_not_lost(kind, field, before, clock, fresh, monkeypatch):
    """One UPDATE takes a name, or its being alive, from a row of a later page and gives it to one of a page before."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 20)
    monkeypatch.setattr(verify.PublishCheck, "verify_rows", lambda *arguments: 0)  # which reads samples of large tables
    rows = [Bundle(name=f"name-{number}") for number in range(60)]
    first, last = rows[0], rows[-1]
    if field == "size":
        first.name, first.size = last.name, 0
    for row in rows:
        row.save()

    def exchange(done, total):
        if done == 20:
            ones, others = getattr(first, field), getattr(last, field)
            setattr(first, field, others)
            setattr(last, field, ones)
            Bundle.objects.bulk_update([first, last], [field])

    with registered(Bundle, name="named", lookup="name", filter=kind, alive=Q(size__gt=0)) as guard:
        for _ in range(before):
            Rebuild(guard, sleep=clock.sleep).run()
        Rebuild(guard, sleep=clock.sleep, progress=exchange).run()
        names = Bundle.objects.filter(size__gt=0).values_list("name", flat=True)
        lost = [name for name in names if guard._runtime.decide(name) == ABSENT]

    assert (lost, guard._runtime.decide("none") == ABSENT) == ([], True)


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("name", ["order", "article", "place", "price", "diary"])
def test_every_guard_can_be_built(name, build, clock):
    """UUIDs, text, several fields, decimals and dates; an empty table too."""
    report = build(name)

    assert (report.guard, report.rows) == (name, 0)
    assert row_of(name).active == report.generation


def row_of(name: str) -> GuardState:
    return GuardState.objects.using(database.current).get(name=name)


def test_a_report_tells_what_was_made(built):
    """The figures are those of the generation that serves."""
    assert (built.guard, built.kind, built.rows) == ("product", "bitmap", 100)
    assert built.capacity >= 1_000
    assert 0 <= built.error_rate_measured <= built.error_rate == 0.001
    assert built.seconds > 0
    assert (stores["default"].path / "product" / f"{built.generation}.filter").stat().st_size == built.bytes


def test_the_row_tells_what_serves(built):
    """The state row names the generation, its store, its rows, and no builder."""
    found = row()

    assert (found.active, found.standby, found.building, found.builder) == (built.generation, "", "", "")
    assert (found.status, found.rows, found.identity) == (ARMED, 100, stores["default"].identity)
    assert found.published_at is not None


def test_the_generation_before_goes(built, build):
    """Once nobody answers from it any more, the former generation is dropped."""
    again = build("product")

    assert stores["default"].names("product") == [again.generation]
    assert row().standby == ""


def litter(report):
    """The name of a generation that a builder of the same database could have left."""
    return report.generation[:9] + "litter"


def test_what_was_left_lying_goes(built, build):
    """Generations that no row names, and a build from this database has left, are removed by the next one."""
    layout = (
        stores["default"]
        .open("product", built.generation, registry["product"]._runtime.active_filter.find_key_hash)
        .layout
    )
    stores["default"].create("product", litter(built), layout)

    again = build("product")

    assert stores["default"].names("product") == [again.generation]


def test_what_cannot_be_removed_stops_nobody(built, build, caplog):
    """A leftover that will not go is warned of, and the build is published."""
    (stores["default"].path / "product" / f"{litter(built)}.filter").mkdir()

    again = build("product")

    assert row().active == again.generation
    assert "litter" in caplog.text


def test_a_fence_ends_with_a_rebuild(built, build, clock):
    """A fenced guard answers again from the new generation on, and says no more why it did not."""
    states.table.fence("product", "because")

    build("product")

    assert (row().status, row().reason) == (ARMED, "")
    assert serves(clock)


def key(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def test_a_store_that_is_replaced_denies_no_row(built, clock, monkeypatch):
    """A build takes over from another store. A process that renewed its lease right before any change of the row, and
    has the filter of before, denies nothing that is saved after that change."""
    guard, builder = registry["product"], ProductGuard(Product)
    reader = ActiveFilter(
        "product",
        store_alias="default",
        definition=guard._meta.definition,
        width=8,
        table=StateTable(Counting(), clock),
    )
    saved, asked, swap = [], [], states.table.swap

    def save_and_ask() -> None:
        saved.append(Product.objects.create(pk=1_000 + len(saved)).pk)
        asked.extend(reader.ask(key(pk)) for pk in saved)

    def swap_between(seen, **changes):
        reader.table.renew(after=clock.now)
        after = swap(seen, **changes)
        if changes.get("building") or changes.get("active"):
            save_and_ask()
        return after

    def sleep(seconds):
        for _ in range(int(4 * seconds)):
            save_and_ask()
            clock.now += 0.25

    clock.now += 1
    assert reader.ask(key(ABSENT_PK)) == ABSENT
    folder = stores["default"].path
    folder.rename(folder.with_name("former"))
    monkeypatch.setattr(states.table, "swap", swap_between)
    report = Rebuild(builder, sleep=sleep, progress=lambda *figures: save_and_ask()).run()

    assert len(saved) > 8
    assert ABSENT not in asked
    assert row().active == report.generation
    assert serves(clock)


def test_a_build_that_cannot_write_its_store_leaves_the_other_one_in_use(built, clock, settings, tmp_path):
    """As by another user, or with other settings: what failed to begin fences nothing, however often cron runs it."""
    usable = settings.BLOOMGUARD
    (tmp_path / "file").touch()
    settings.BLOOMGUARD = {
        "STORES": {"default": {**usable["STORES"]["default"], "OPTIONS": {"path": tmp_path / "file/a"}}}
    }
    stores.reset()
    with pytest.raises(RebuildError, match=r"cannot write .*file as user \d+: "):
        Rebuild(registry["product"]).run()
    settings.BLOOMGUARD = usable
    forget()

    assert (row().status, row().active) == (ARMED, built.generation)
    assert serves(clock)


@pytest.mark.parametrize("reason", ["fenced by somebody with switch_guards", "raw SQL wrote to shop_product"])
def test_a_build_that_ends_early_in_another_store_leaves_the_guard_fenced(built, clock, caplog, reason):
    """For its own reason, or for that of an earlier fence, which may be a user's."""
    stores["default"].path.rename(stores["default"].path.with_name("former"))

    for expected in ("its filter was built in another store", reason):
        rebuilder = Rebuild(registry["product"], sleep=clock.sleep)
        rebuilder.announce()
        rebuilder.withdraw()

        assert (row().status, row().building) == (FENCED, "")
        assert row().reason.startswith(expected)
        assert ("passes every request until it is rebuilt" in caplog.text) is (expected != reason)
        caplog.clear()
        states.table.swap(states.table.current("product"), reason=reason, identity="another")


def test_progress_is_told_page_by_page(built, clock, monkeypatch):
    """Rows done, and rows in all."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 40)
    told = []

    Rebuild(registry["product"], progress=lambda *figures: told.append(figures), sleep=clock.sleep).run()

    assert told == [(40, 100), (80, 100), (100, 100)]


def test_a_rebuild_waits_before_it_scans_and_before_it_drops(built, clock):
    """Two leases between the announcement and the scan, and two between the publication and the drop: by then every
    process knows."""
    seen = []

    def sleep(seconds):
        seen.append((seconds, row().building != "", row().standby, stores["default"].names("product")))
        clock.now += seconds

    again = Rebuild(registry["product"], sleep=sleep).run()

    both = sorted([built.generation, again.generation])
    assert [(seconds, building, standby, sorted(names)) for seconds, building, standby, names in seen] == [
        (2.0, True, "", both),
        (2.0, False, built.generation, both),
    ]


# -- what is written meanwhile


WRITER = """
import select, sys, uuid
import django
django.setup()
from tests.shop.models import Order
for number in range(100_000):
    if select.select([sys.stdin], [], [], 0)[0]:
        break
    order = Order(pk=uuid.uuid4())
    order.save()
    print(order.pk, flush=True)
"""


class Acknowledged:
    """The rows whose ``save()`` has returned in processes that write without a pause."""

    def __init__(self, writers) -> None:
        self.writers = writers
        self.keys: list[uuid.UUID] = []
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._read, args=(writer,)) for writer in writers]
        for thread in self._threads:
            thread.start()

    def _read(self, writer) -> None:
        for line in writer.stdout:
            with self._news:
                self.keys.append(uuid.UUID(line.strip()))
                self._news.notify_all()

    def wait_for(self, more: int) -> None:
        with self._news:
            wanted = len(self.keys) + more
            assert self._news.wait_for(lambda: len(self.keys) >= wanted, 60)

    def stop(self) -> None:
        for writer in self.writers:
            writer.stdin.write("x")
            writer.stdin.flush()
        for thread in self._threads:
            thread.join(60)


@pytest.mark.usefixtures("each_database")
def test_no_write_of_another_process_is_lost(start, fresh, monkeypatch):
    """Processes that write all the while, before, during and after a build: every row whose save returned is in the
    generation that was served and in the one that is published."""
    Order.objects.bulk_create(Order() for _ in range(500))
    monkeypatch.setattr(OrderGuard, "capacity", 200_000)
    former = Rebuild(registry["order"], sleep=lambda seconds: None).run().generation
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    monkeypatch.setattr(Rebuild, "retire", lambda self, state: None)
    acknowledged = Acknowledged([start(code=WRITER), start(code=WRITER)])
    acknowledged.wait_for(10)

    # At least five new rows between any two pages: some of them behind the scan, some before it.
    report = Rebuild(registry["order"], progress=lambda done, total: acknowledged.wait_for(5)).run()
    acknowledged.wait_for(10)
    acknowledged.stop()

    guard = registry["order"]
    generations = [
        stores["default"].open("order", name, guard._runtime.active_filter.find_key_hash)
        for name in (former, report.generation)
    ]
    assert row_of("order").status == ARMED
    assert len(acknowledged.keys) > 50
    missing = [[key for key in acknowledged.keys if not each.might_contain(key.bytes)] for each in generations]
    assert missing == [[], []]


@pytest.mark.usefixtures("each_database")
def test_a_writer_of_before_is_waited_for(start, fresh, monkeypatch):
    """A transaction that wrote before the build was announced, and commits after its settling time, is in it."""
    written, go_on = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with transaction.atomic(using=database.current):
                Product.objects.create(pk=7)
                written.set()
                go_on.wait(60)
        finally:
            connections[database.current].close()

    writer = threading.Thread(target=write)
    announce = Rebuild._name_generation

    def announced(self, seen):
        # SQLite has one writer at a time, so there it is the announcement that waits for the transaction.
        if connections[database.current].vendor == "sqlite":
            go_on.set()
            return announce(self, seen)
        writer.start()
        written.wait(60)
        return announce(self, seen)

    def settled(seconds):
        go_on.set()

    monkeypatch.setattr(Rebuild, "_name_generation", announced)
    if connections[database.current].vendor == "sqlite":
        writer.start()
        written.wait(60)

    report = Rebuild(registry["product"], sleep=settled).run()
    writer.join()

    assert report.rows == 1


def test_a_write_of_this_process_goes_to_the_next_generation_too(built, clock):
    """A row behind the scan is in what is published, because its writer was told."""
    late = []

    def progress(done, total):
        clock.now += 1
        if not late:
            late.append(Product.objects.create(pk=-5))

    Rebuild(registry["product"], progress=progress, sleep=clock.sleep).run()
    clock.now += 1

    assert registry["product"]._runtime.decide(-5) == MAYBE
    assert serves(clock)


# -- what stops it


def test_a_rebuild_inside_a_transaction_is_refused(built, clock):
    """It would not see what others commit."""
    with transaction.atomic(), pytest.raises(RebuildError, match="inside a transaction"):
        Rebuild(registry["product"], sleep=clock.sleep).run()

    assert stores["default"].names("product") == [built.generation]


@pytest.mark.usefixtures("each_database")
def test_a_row_that_changed_meanwhile_forbids_publishing(build, clock):
    """A fence during the build may mean a row that the new generation lacks: it is given up, with the reason of the
    fence and no litter."""
    Product.objects.create(pk=1)
    first = build("product")

    with pytest.raises(RebuildError, match=r"state row changed during the build \(because\)"):
        Rebuild(
            registry["product"], sleep=clock.sleep, progress=lambda *figures: states.table.fence("product", "because")
        ).run()

    assert stores["default"].names("product") == [first.generation]
    assert (row().active, row().building, row().status) == (first.generation, "", FENCED)

    def end(*figures):
        states.table.swap(states.table.current("product"), building="", builder="")

    with pytest.raises(RebuildError, match=r"\(a fence, a roll-back or another builder\)"):
        Rebuild(registry["product"], sleep=clock.sleep, progress=end).run()  # the earlier fence is not the cause


@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_more_rows_than_room_are_not_published(kind, built, clock, monkeypatch):
    """Rows that poured in since they were counted make the build stop, with the figures."""
    monkeypatch.setattr(ProductGuard, "filter", kind)
    former = Rebuild(registry["product"], sleep=clock.sleep).run().generation
    rebuilder = Rebuild(registry["product"], sleep=clock.sleep)
    rebuilder.announce()
    states.table.renew(after=clock.now - 1)
    with connections["default"].cursor() as cursor:  # unseen by any hook: the scan alone finds them
        cursor.cursor.executemany(
            "INSERT INTO shop_product (id, name) VALUES (?, '')", [(n,) for n in range(1_000, 2_500)]
        )
    connections["default"].commit()

    with pytest.raises(Exception, match=r"1,600 rows where 100 were expected|no room for 512 of 1,600 keys") as raised:
        rebuilder.complete()
    rebuilder.withdraw()

    assert raised.type.__module__.startswith("bloomguard.")
    assert stores["default"].names("product") == [former]
    assert row().active == former


def test_a_store_without_room_is_said_before_anything_is_done(built, clock, monkeypatch):
    """With the bytes wanted and the bytes left; the old generation goes on."""
    monkeypatch.setattr(type(stores["default"]), "free_bytes", lambda self: 100)

    with pytest.raises(RebuildError, match=r"takes [\d,]+ bytes; the store 'default' has 100 left"):
        Rebuild(registry["product"], sleep=clock.sleep).run()
    with pytest.raises(RebuildError, match="has 100 left"):
        Rebuild(registry["product"]).plan()

    assert serves(clock)


@pytest.mark.parametrize("step", ["create", "seal", "might_contain"])
def test_a_store_that_fails_leaves_what_was_served(step, built, clock, monkeypatch):
    """Whatever the store refuses, the error names the guard, nothing is published, and nothing is left lying."""
    from bloomguard.stores.file import FileGeneration, FileStore

    def fail(*args, **kwargs):
        raise StoreError("the disk is gone")

    owner, name = {
        "create": (FileStore, "create"),
        "seal": (FileGeneration, "seal"),
        "might_contain": (FileGeneration, "measure_error_rate"),
    }[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RebuildError, match="product: the disk is gone"):
            Rebuild(registry["product"], sleep=clock.sleep).run()

    assert stores["default"].names("product") == [built.generation]
    assert row().building == ""
    assert serves(clock)


@pytest.mark.usefixtures("each_database")
def test_a_database_that_fails_leaves_what_was_served(build, clock, monkeypatch):
    """A scan that breaks off in the middle is an error that names the guard."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 51))
    first = build("product")
    monkeypatch.setattr(sources, "PAGE_ROWS", 20)

    def broken(*figures):
        raise OperationalError("the connection is gone")

    with pytest.raises(RebuildError, match="product: the connection is gone"):
        Rebuild(registry["product"], sleep=clock.sleep, progress=broken).run()

    assert stores["default"].names("product") == [first.generation]
    assert serves(clock)


def rebuild_cut_off(clock, monkeypatch, column):
    """Run a rebuild whose connection breaks after its change of a state row's ``column``, and before the reply."""
    swap = states.table.swap

    def cut_off(seen, **changes):
        after = swap(seen, **changes)
        if changes.get(column):
            raise OperationalError("the connection is gone")
        return after

    with monkeypatch.context() as patch:
        patch.setattr(states.table, "swap", cut_off)
        with pytest.raises(RebuildError, match="gone"):
            Rebuild(registry["product"], sleep=clock.sleep).run()


def test_a_publication_that_was_not_heard_of_is_not_taken_back(built, clock, monkeypatch):
    """The row has changed, so the new generation serves: it must not be dropped."""
    rebuild_cut_off(clock, monkeypatch, "active")

    assert row().active != built.generation
    assert row().active in stores["default"].names("product")
    assert serves(clock)


def test_an_announcement_that_was_not_heard_of_is_taken_back(built, clock, monkeypatch):
    """The same while announcing: writers must not be left with a generation that is not there."""
    rebuild_cut_off(clock, monkeypatch, "building")

    assert row().building == ""
    assert stores["default"].names("product") == [built.generation]


@pytest.mark.parametrize("broken", ["current", "swap"])
def test_tidying_up_that_fails_is_no_failure(broken, built, clock, monkeypatch, caplog):
    """Once it is published, a build has succeeded: what is left over is the next one's to remove."""
    rebuilder = Rebuild(registry["product"])

    def fail(*args, **kwargs):
        raise OperationalError("gone")

    def sleep(seconds):
        if rebuilder.published:
            patch.setattr(states.table, "swap", fail)

    with monkeypatch.context() as patch:
        if broken == "current":
            publish = rebuilder._publish
            patch.setattr(rebuilder, "_publish", lambda *a: (publish(*a), patch.setattr(states.table, "current", fail)))
        rebuilder._sleep = sleep
        report = rebuilder.run()

    assert row().active == report.generation
    assert "could not remove an old generation" in caplog.text
    again = Rebuild(registry["product"], sleep=clock.sleep).run()
    assert stores["default"].names("product") == [again.generation]


def test_what_cannot_be_withdrawn_is_said(built, clock, monkeypatch, caplog):
    """When the database is gone for good, the litter is left to the next build, and the first error is the one told."""

    def fail(*figures):
        monkeypatch.setattr(states.table, "current", lambda name: (_ for _ in ()).throw(OperationalError("all gone")))
        raise OperationalError("gone first")

    with pytest.raises(RebuildError, match="gone first"):
        Rebuild(registry["product"], sleep=clock.sleep, progress=fail).run()

    assert "left an unfinished generation" in caplog.text
    monkeypatch.undo()


@pytest.mark.parametrize("error", [StoreError("no room"), InterfaceError("no room"), TypeError("no room")])
def test_one_that_fails_stops_no_other(fresh, clock, monkeypatch, error):
    """Several guards are built with one wait, and each has its own outcome. An ``InterfaceError`` is no
    ``DatabaseError``: psycopg2 raises it by a connection that the server has closed. The project's own code, such as
    a ``normalize``, may raise anything."""
    Order.objects.create()
    slept = []
    rebuilds = [Rebuild(registry[name]) for name in ("product", "order", "place")]

    announce = Rebuild.announce

    def refused(self):
        if self is rebuilds[0]:
            raise error
        announce(self)

    monkeypatch.setattr(Rebuild, "announce", refused)

    outcomes = run_all(rebuilds, slept.append)

    assert [type(outcome).__name__ for outcome in outcomes] == ["RebuildError", "Report", "Report"]
    assert "product: " in str(outcomes[0])
    assert "no room" in str(outcomes[0])
    assert slept == [2.0]


# -- other builders


def announced_by(builder: str, silent: float = 0.0, generation: str = "theirs") -> State:
    """Somebody else's announcement in the row."""
    seen = states.table.current("product")
    since = timezone.now() - timedelta(seconds=silent)
    return states.table.swap(seen, building=generation, builder=builder, builder_seen_at=since)


@pytest.mark.parametrize(
    ("builder", "silent", "alive"),
    [
        ("elsewhere/1", 0, True),
        ("elsewhere/1", 59, True),
        ("elsewhere/1", 61, False),
        ("elsewhere/1", -59, True),  # its clock is fast
        ("elsewhere/1", -7_200, False),  # it was killed before its clock, or this one, was set back
        (f"{socket.gethostname()}/1", 0, True),
        (f"{socket.gethostname()}/4194999", 0, False),
    ],
)
def test_a_builder_that_is_alive_is_left_alone(builder, silent, alive, built, clock, monkeypatch):
    """Its heartbeat is at most a minute old or ahead, and if it is of this host it runs: then this build gives way."""
    monkeypatch.setattr(timezone, "now", mock.Mock(return_value=timezone.now()))
    announced_by(builder, silent)
    rebuilder = Rebuild(registry["product"], sleep=clock.sleep)

    if alive:
        with pytest.raises(
            BuilderBusy, match=r"product is being built by process .* last heartbeat .* s ago; run it again later"
        ):
            rebuilder.run()
        assert row().building == "theirs"
        assert stores["default"].names("product") == [built.generation]
    else:
        rebuilder.run()
        assert row().building == ""
    assert serves(clock)


def test_a_builder_whose_row_was_just_deleted_is_asked_to_try_again(built):
    """It may be alive; nothing else is known of it any more."""
    seen = announced_by("elsewhere/1")
    GuardState.objects.all()._raw_delete("default")

    with pytest.raises(BuilderBusy, match="last heartbeat 0 s ago; run it again later"):
        locks.refuse_if_alive(states.table, seen)


def test_a_process_of_another_user_is_alive(monkeypatch):
    """A process that must not be signalled runs nevertheless."""

    def forbidden(pid, number):
        raise PermissionError

    monkeypatch.setattr("os.kill", forbidden)

    assert locks.is_running(1)


def test_of_two_who_announce_at_once_one_gives_way(built, clock, monkeypatch):
    """Whoever finds the row changed since it looked has lost the race, and leaves nothing."""
    rebuilder = Rebuild(registry["product"], sleep=clock.sleep)
    announce = rebuilder._name_generation

    def late(seen):
        announced_by("elsewhere/1")
        return announce(seen)

    monkeypatch.setattr(rebuilder, "_name_generation", late)

    with pytest.raises(BuilderBusy, match="at the same moment"):
        rebuilder.run()

    assert row().building == "theirs"
    assert stores["default"].names("product") == [built.generation]


def test_a_builder_beats_now_and_then(built, clock, monkeypatch):
    """Every ten seconds of a long scan the row is told that its builder is alive."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 1)
    beats = []
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not beats.append(clock.now))
    began = clock.now

    def progress(done, total):
        clock.now += 1

    Rebuild(registry["product"], progress=progress, sleep=lambda seconds: None, clock=clock).run()

    assert [beat - began for beat in beats] == [10.0 * number for number in range(1, 11)]


def test_a_builder_beats_on_after_the_clock_went_back(built, clock, monkeypatch):
    """Not only when the clock is where it was: others would take the builder for dead."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 1)
    beats = []
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not beats.append(clock.now))
    steps = iter([-900, *[1] * 200])

    def progress(done, total):
        clock.now += next(steps)

    began = clock.now
    Rebuild(registry["product"], progress=progress, sleep=lambda seconds: None, clock=clock).run()

    assert [beat - began + 900 for beat in beats] == [10.0 * number for number in range(10)]


def test_a_builder_beats_while_it_looks_for_reasons_to_refuse(built, clock, monkeypatch):
    """There may be thousands of tenants to look at between the announcement and the scan."""
    seen, look = [], refusals.declaration_refusals
    rebuild = Rebuild(registry["product"], sleep=lambda seconds: None, clock=clock)
    fill = rebuild._fill

    def slow(guard):
        clock.now += 11
        return look(guard)

    monkeypatch.setattr(refusals, "declaration_refusals", slow)
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not seen.append("beat"))
    monkeypatch.setattr(rebuild, "_fill", lambda *given: seen.append("scan") or fill(*given))

    rebuild.run()

    assert seen == ["beat", "scan"]


def test_a_builder_beats_while_it_reads_rows_again(built, clock, monkeypatch):
    """That takes some 10 ms a tenant too, and what is not announced as alive may be cleared away."""
    beats = []

    def slow(check, generation):
        clock.now += 11
        return 1

    monkeypatch.setattr(verify.PublishCheck, "verify_rows", slow)
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not beats.append(state.name))
    rebuild = Rebuild(registry["product"], sleep=lambda seconds: None, clock=clock)
    publish = rebuild._publish
    monkeypatch.setattr(rebuild, "_publish", lambda *given: beats.append("publish") or publish(*given))

    rebuild.run()

    assert beats == ["product", "publish"]


@pytest.mark.parametrize(
    ("each_database", "seconds", "beats"),
    [("postgresql", 31, True), ("postgresql", 3_601, False), ("sqlite", 31, False)],
    ids=["long", "hung", "reading a file"],
    indirect=["each_database"],
)
def test_a_builder_beats_while_one_of_its_steps_lasts(each_database, seconds, beats, clock, monkeypatch, fresh):
    """One page may take half an hour. If it takes more than an hour it may never end, and nobody can write its file."""
    sent, ends, looked = [], float("inf"), threading.Event()
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not sent.append(clock.now))
    # It waited for two hours before, with many steps: those do not count.
    rebuild = Rebuild(registry["product"], sleep=lambda seconds: clock.sleep(7_200), clock=clock)
    heartbeat = rebuild.heartbeat

    def watched(**how):
        began = clock.now
        heartbeat(**how)
        if how and began >= ends:
            looked.set()

    def slow(check, generation):
        nonlocal ends
        sent.clear()
        ends = clock.now + seconds
        clock.now = ends
        assert looked.wait(60)
        assert bool(sent) == beats
        return 1

    monkeypatch.setattr(rebuild, "heartbeat", watched)
    monkeypatch.setattr(verify.PublishCheck, "verify_rows", slow)

    assert rebuild.run().rows_verified == 1


def test_the_projects_own_connection_is_not_used_after_a_scan(built, clock, monkeypatch):
    """It has been idle since the beginning: a firewall may have cut it, and the whole build would be lost."""
    whole, asked = states.table.row, []
    monkeypatch.setattr(states.table, "row", lambda name: asked.append(name) or whole(name))

    Rebuild(registry["product"], sleep=clock.sleep, progress=lambda done, total: asked.append(done)).run()

    assert asked[0] == "product"
    assert "product" not in asked[1:]


def test_a_builder_that_can_start_no_thread_goes_on(built, clock, monkeypatch):
    """It sends heartbeats between its steps."""
    monkeypatch.setattr(locks, "start_thread", mock.Mock(side_effect=RuntimeError))

    assert Rebuild(registry["product"], sleep=clock.sleep).run().rows == 100


def test_no_heartbeat_is_sent_after_a_build_was_interrupted(built, clock, monkeypatch):
    """Its thread ends with it: a long-lived process would seem to build for ever."""
    threads = []
    monkeypatch.setattr(locks, "start_thread", lambda run: threads.append(start_thread(run)) or threads[0])

    with pytest.raises(KeyboardInterrupt):
        Rebuild(registry["product"], sleep=mock.Mock(side_effect=KeyboardInterrupt)).run()

    assert threads[0].wait(60)


def test_a_builder_beats_while_others_of_its_run_are_announced(built, clock, monkeypatch):
    """To count the rows of each may take seconds, and there may be many."""
    beats = []
    options = {"sleep": lambda seconds: None, "clock": clock}
    rebuilds = [Rebuild(registry[name], **options) for name in ("product", "order", "article", "place")]
    for one in rebuilds:
        plan = one._plan

        def slow(plan=plan):
            clock.now += 11
            return plan()

        monkeypatch.setattr(one, "_plan", slow)
    monkeypatch.setattr(states.table, "heartbeat", lambda state: not beats.append(state.name))

    run_all(rebuilds, lambda seconds: beats.append("wait"))

    assert beats[: beats.index("wait")] == ["product", "product", "order"]


def test_a_beat_that_fails_ends_no_build(built, clock, monkeypatch):
    """A second without the state rows is no reason to begin a long scan again; the next beat is ten seconds later."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 1)
    beats = []

    def fail(state):
        beats.append(clock.now)
        raise OperationalError("the connection was lost")

    def progress(done, total):
        clock.now += 1

    monkeypatch.setattr(states.table, "heartbeat", fail)
    report = Rebuild(registry["product"], progress=progress, sleep=lambda seconds: None, clock=clock).run()

    assert states.table.current("product").active == report.generation != built.generation
    assert len(beats) == 10


def test_a_build_that_a_fence_has_ended_stops_at_the_next_beat(built, clock, monkeypatch):
    """A scan may take hours, and what it builds can be published no more; the error has the reason of the fence."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 1)
    seen = []

    def progress(done, total):
        seen.append(done)
        clock.now += 4
        if len(seen) == 2:
            states.table.fence("product", "raw SQL wrote to the table")

    with pytest.raises(RebuildError, match=r"during the build \(raw SQL wrote to the table\)"):
        Rebuild(registry["product"], progress=progress, sleep=lambda seconds: None, clock=clock).run()

    assert seen == [1, 2, 3], "it read on after the beat"
    assert row().building == ""
    assert stores["default"].names("product") == [built.generation]


# -- kills


def stopped_at(start, step: str):
    """A process that rebuilds and has come to ``step``."""
    child = start(
        "rebuild_filter", "product", "-v", "0", "--skip-checks", BLOOMGUARD_STOP=STEPS[step], BLOOMGUARD_HASTE="1"
    )
    assert child.stdout.readline() == "reached\n", child.stderr.read()
    return child


@pytest.mark.parametrize("step", STEPS)
def test_a_builder_that_was_killed_harms_nobody(step, start, built, build, clock):
    """``kill -9`` at any step: what was served is served on, rows are saved and found, and the next build takes over
    at once and removes what was left."""
    child = stopped_at(start, step)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    forget()

    assert serves(clock)
    Product.objects.create(pk=5_000)
    assert row().status == ARMED
    assert serves(clock)

    again = build("product")

    assert stores["default"].names("product") == [again.generation]
    assert (row().active, row().standby, row().building) == (again.generation, "", "")
    assert again.rows == 101
    assert serves(clock)


@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_leaves_no_litter(step, start, built, clock):
    """Ctrl-C at any step: exit code 130, what is said is true, and nothing is left lying."""
    child = stopped_at(start, step)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    forget()

    assert child.returncode == 130, said
    assert f"interrupted (rebuilt before: {'product' if step == 'retiring' else 'none'})" in said
    assert "Traceback" not in said
    if step == "retiring":  # published already: the former one is the next build's to remove
        assert len(stores["default"].names("product")) == 2
    else:
        assert stores["default"].names("product") == [built.generation]
    assert row().building == ""
    assert serves(clock)


def test_a_scan_that_is_interrupted_keeps_no_lock_of_sqlites(built, clock, monkeypatch, tmp_path):
    """A traceback keeps the cursor of a page that is being read, and nobody could commit before it is closed."""
    path = tmp_path / "site.sqlite3"
    reader, writer = sqlite3.connect(path), sqlite3.connect(path, timeout=0)
    writer.executescript("CREATE TABLE site (id); INSERT INTO site VALUES (1), (2)")

    def interrupted(self):
        cursor = reader.execute("SELECT id FROM site")
        raise KeyboardInterrupt(cursor.fetchone())

    def withdraw(self):
        with writer:
            writer.execute("DELETE FROM site")

    monkeypatch.setattr(Rebuild, "complete", interrupted)
    monkeypatch.setattr(Rebuild, "withdraw", withdraw)
    with closing(reader), closing(writer), pytest.raises(KeyboardInterrupt):
        Rebuild(registry["product"], sleep=clock.sleep).run()


def test_a_second_builder_is_told_to_try_later(start, built, clock):
    """While one builds, another one ends with exit code 75, and the first is not disturbed."""
    first = stopped_at(start, "scanning")
    second = start("rebuild_filter", "product", "--skip-checks", BLOOMGUARD_HASTE="1")
    _, said = second.communicate(timeout=60)
    first.send_signal(signal.SIGUSR1)
    first.communicate(timeout=60)

    assert second.returncode == 75
    assert f"being built by process {first.pid} on {socket.gethostname()}" in said
    assert first.returncode == 0
    assert row().active != built.generation
    assert serves(clock)


def test_a_guard_of_another_width_has_no_bitmap(fresh):
    """``filter = "bitmap"`` holds integers and dates alone."""

    class Orders(Guard):
        filter = "bitmap"

    with pytest.raises(RebuildError, match="only integers and dates"):
        Rebuild(Orders(Order)).plan()


def test_a_generation_on_another_server_than_the_row_would_name_is_refused(fresh, clock, monkeypatch):
    """A failover came in between: the connection that created it still leads to the former primary."""
    store = stores["default"]
    create = type(store).create

    def elsewhere(self, *arguments):
        made = create(self, *arguments)
        made.identity = "the former primary"
        return made

    monkeypatch.setattr(type(store), "create", elsewhere)
    with pytest.raises(RebuildError, match="the store was replaced at the same moment"):
        Rebuild(registry["product"], sleep=clock.sleep).run()

    assert store.names("product") == []
    assert states.table.current("product").building == ""
