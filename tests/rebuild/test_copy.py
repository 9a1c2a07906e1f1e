"""``rebuild_filter --from-store``: a filter moves to another store by its bits, and no row is lost on the way."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import pytest
import redis
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from bloomguard.exceptions import RebuildError, StoreError, StoreUnavailable
from bloomguard.filters.codec import Frame
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, rebuild
from bloomguard.rebuild.copy import FilterCopy
from bloomguard.rebuild.plan import assess
from bloomguard.rebuild.source import Source
from bloomguard.rebuild.verify import Verification
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.stores.redis import RedisStore
from bloomguard.stores.redis.store import RedisGeneration
from tests.conftest import forget
from tests.shop.models import Article, Product
from tests.support import servers
from tests.support.patience import PATIENT

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

ROWS = 1_000
PATHS = [("files", "shared"), ("shared", "files")]


@pytest.fixture
def move(tmp_path, settings):
    """``move(alias)`` makes that store the guards' own, as a deployment does; both stay in the settings."""
    with redis.Redis.from_url(servers.valkey()) as client:
        client.flushall()
    backends = {
        "files": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": tmp_path / "filters"}},
        "shared": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": servers.valkey(), **PATIENT}},
    }

    def hang_up():
        for made in stores._stores.values():
            if isinstance(made, RedisStore):
                made.close()

    def to(alias, *known):
        hang_up()
        settings.BLOOMGUARD = {
            "STORES": {"default": backends[alias], **{name: backends[name] for name in known or backends}}
        }
        forget()

    yield to
    hang_up()
    forget()


@pytest.fixture
def shop(move, clock):
    """``shop(alias)``: products and articles whose filters lie in that store."""

    def build(alias):
        move(alias)
        Product.objects.bulk_create(Product(pk=pk) for pk in range(1, ROWS + 1))
        Article.objects.bulk_create(Article(slug=f"article-{number}") for number in range(ROWS))
        for name in ("product", "article"):
            Rebuild(registry[name], sleep=clock.sleep).run()

    return build


def copy(name, origin, clock, **options):
    return FilterCopy(registry[name], origin, sleep=clock.sleep, **options)


def known(name):
    values = range(1, ROWS + 1) if name == "product" else [f"article-{number}" for number in range(ROWS)]
    return {registry[name].verdict(value) for value in values}


def unknown(name):
    return registry[name].verdict(999_999_999 if name == "product" else "nowhere")


def shard_of(name, generation):
    active = registry[name]._runtime.active_filter
    return active.generation(state.table.current(name), generation).read_shard(0)


@pytest.mark.parametrize(("origin", "target"), PATHS)
@pytest.mark.usefixtures("each_database")
def test_a_filter_moves_by_its_bits(shop, move, clock, origin, target, monkeypatch):
    """A bitmap and a Bloom filter arrive with all their bits, no row is read, and the original is gone."""
    shop(origin)
    names = ("product", "article")
    before = {name: shard_of(name, state.table.current(name).active) for name in names}
    move(target)
    monkeypatch.setattr(Source, "pages", None)
    monkeypatch.setattr(Source, "summary", None)

    for name in names:
        report = copy(name, origin, clock).run()

        clock.sleep(2)
        assert known(name) == {Verdict.MAYBE}
        assert unknown(name) is Verdict.ABSENT
        after = shard_of(name, report.generation)
        assert bytes(after.body) == bytes(before[name].body)
        assert after.header.tag != before[name].header.tag
        assert report.rows == ROWS
        assert stores[origin].names(name) == []
        assert stores[target].names(name) == [report.generation]


@pytest.mark.parametrize(("origin", "target"), PATHS)
def test_a_guard_goes_on_answering_from_where_its_filter_lies(shop, move, clock, origin, target):
    """With the guard's store changed in the settings, the former one answers and is written to until there is a new
    filter."""
    shop(origin)
    move(target)

    Product.objects.create(pk=ROWS + 1)

    assert state.table.current("product").status == ARMED
    assert registry["product"].verdict(ROWS + 1) is Verdict.MAYBE
    assert registry["product"].verdict(ROWS + 2) is Verdict.ABSENT
    guard = registry["product"]
    assert (guard._runtime.active_filter.ask_now(guard._meta.keys.key(ROWS + 2)) is None) == stores[origin].is_remote
    move(target, target)
    assert registry["product"].verdict(ROWS + 2) is Verdict.UNKNOWN


@pytest.mark.parametrize(("origin", "target"), PATHS)
def test_until_it_moves_commands_look_where_the_filter_lies(shop, move, clock, origin, target, capsys):
    """``--if-needed`` has no reason to scan, ``explain_guard`` finds no fault, and ``verify_filter`` fences."""
    shop(origin)
    move(target)
    guard = registry["product"]

    found = run_checks(tags=["bloomguard"], include_deployment_checks=True)
    assert "bloomguard.W033" not in [each.id for each in found]
    hints = [each.hint for each in found if each.id == "bloomguard.I041"]
    for name in ("product", "article"):
        assert any(f"rebuild_filter {name} --from-store {origin} " in hint for hint in hints)
    assert assess(guard).reasons == ()
    call_command("explain_guard", f"/products/{ROWS + 7}/", "--json")
    (answer,) = json.loads(capsys.readouterr().out)["guards"]
    assert (answer["verdict"], answer["fault"]) == ("absent", "")
    assert Verification(guard).run().missing == 0
    with closing(connections["default"].connection.cursor()) as cursor:  # the driver's own: nobody sees the write
        cursor.execute(f"INSERT INTO shop_product (id, name) VALUES ({ROWS + 7}, '')")
    assert Verification(guard).run().missing == 1
    assert state.table.current("product").status == FENCED
    assert assess(guard).reasons[0].startswith("it is fenced")


@pytest.mark.parametrize(("origin", "target"), PATHS)
def test_a_filter_that_cannot_be_made_ends_none_in_another_store(shop, move, clock, origin, target, monkeypatch):
    """The new store is full, or refuses: the guard goes on answering from the old one."""
    shop(origin)
    move(target)

    def full(*args):
        raise StoreError("no space left")

    monkeypatch.setattr(type(stores["default"]), "create", full)
    with pytest.raises(RebuildError, match="product: no space left"):
        Rebuild(registry["product"], sleep=clock.sleep).run()

    assert unknown("product") is Verdict.ABSENT
    assert state.table.current("product").status == ARMED


@pytest.mark.parametrize(("origin", "target"), PATHS)
def test_rows_written_during_the_copy_are_in_it(shop, move, clock, origin, target):
    """Whatever is saved before, while and after the bits are brought, and while writers are waited for, is found."""
    shop(origin)
    move(target)
    rows = iter(range(ROWS + 1, 2 * ROWS))
    saved = []

    def write(*progress):
        saved.append(Product.objects.create(pk=next(rows)).pk)
        clock.sleep(0.1)

    def sleep(seconds):
        write()
        clock.sleep(seconds)
        write()

    copying = FilterCopy(registry["product"], origin, sleep=sleep, progress=write)
    write()
    copying.run()
    write()

    clock.sleep(2)
    assert len(saved) >= 6
    assert {registry["product"].verdict(pk) for pk in saved} == {Verdict.MAYBE}
    assert known("product") == {Verdict.MAYBE}
    assert unknown("product") is Verdict.ABSENT


@pytest.mark.parametrize(("origin", "target"), PATHS)
@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
@pytest.mark.usefixtures("each_database")
def test_an_open_transaction_is_waited_for(shop, move, clock, origin, target):
    """A writer that wrote to the original alone has ended before its bits are read for the last time."""
    shop(origin)
    move(target)
    copying = copy("product", origin, clock)
    copying.prepare()
    written, go_on = threading.Event(), threading.Event()

    def write():
        with transaction.atomic(using="postgresql"):
            Product.objects.create(pk=ROWS + 5)
            written.set()
            go_on.wait(60)
        connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    written.wait(60)
    copying.announce()
    copying._sleep = lambda seconds: (go_on.set(), writer.join(60))
    copying.wait_for_writers()
    copying.complete()

    clock.sleep(2)
    assert go_on.is_set()
    assert registry["product"].verdict(ROWS + 5) is Verdict.MAYBE


def test_processes_that_do_not_know_the_new_store_stop_the_copy(shop, move, clock):
    """A process with the settings of before cannot add to the copy: it fences, and the copy is not published."""
    shop("files")
    move("shared")
    copying = copy("product", "files", clock)
    copying.prepare()
    copying.announce()
    move("files", "files")
    Product.objects.create(pk=ROWS + 1)
    move("shared")

    with pytest.raises(RebuildError, match="not published"):
        copying.complete()

    copying.withdraw()
    clock.sleep(2)
    assert registry["product"].verdict(ROWS + 1) is Verdict.UNKNOWN
    assert stores["shared"].names("product") == []


def test_an_original_that_changed_meanwhile_is_not_copied(shop, move, clock):
    """A fence or a rebuild between the first bits and the announcement: the row is not as it was, so the copy ends."""
    shop("files")
    move("shared")
    copying = copy("product", "files", clock)
    copying.prepare()
    state.table.fence("product", "for a test")

    with pytest.raises(RebuildError, match="its state row changed at the same moment"):
        copying.announce()

    copying.withdraw()
    assert stores["shared"].names("product") == []


def test_a_copy_that_fails_before_it_is_announced_changes_nothing(shop, move, clock):
    """No connection, no room, a damaged original: what was served is served on."""
    shop("files")
    (file,) = (stores["files"].path / "product").glob("*.filter")
    with file.open("r+b") as opened:
        opened.seek(-100, 2)
        byte = opened.read(1)[0]
        opened.seek(-100, 2)
        opened.write(bytes([byte ^ 1]))
    move("shared")
    seen = state.table.current("product")

    with pytest.raises(RebuildError, match="from the store 'files': the body's checksum is wrong"):
        copy("product", "files", clock).run()

    assert state.table.current("product") == seen
    assert stores["shared"].names("product") == []


@pytest.mark.parametrize("fails", ["identity", "read_shard"])
def test_of_two_stores_the_one_that_does_not_answer_is_named(shop, move, clock, monkeypatch, fails):
    """Not the guard's own, into which it would be copied."""
    shop("shared")
    move("files")

    def unreachable(*args):
        raise StoreUnavailable("no connection to the server")

    failing = property(unreachable) if fails == "identity" else unreachable
    monkeypatch.setattr(RedisStore if fails == "identity" else RedisGeneration, fails, failing)
    (outcome,) = rebuild.run_all([FilterCopy(registry["product"], "shared", sleep=clock.sleep)], clock.sleep)

    assert str(outcome) == "product: cannot copy its filter from the store 'shared': no connection to the server"


def test_bits_that_the_copy_did_not_keep_stop_it(shop, move, clock, monkeypatch):
    """What was brought is read back: a copy without a bit of the original is not published."""
    shop("shared")
    move("files")
    copying = copy("product", "shared", clock)
    copying.prepare()
    copying.announce()
    monkeypatch.setattr(type(copying._generation), "merge", lambda self, shard, body: 1)

    with pytest.raises(RebuildError, match="did not keep what was written"):
        copying.complete()


def fenced():
    state.table.fence("product", "a written row could not be added")


def cold():
    state.table.swap(state.table.current("product"), active="")


def replaced():
    state.table.swap(state.table.current("product"), identity="another life")


@pytest.mark.parametrize(
    ("befall", "says"),
    [
        (fenced, r"may lack rows \(a written row could not be added\)"),
        (cold, "there is no filter to copy"),
        (replaced, "from the store 'files': its filter was built in another store than the folder "),
        (lambda: None, None),
    ],
)
def test_only_what_the_row_proves_complete_is_copied(shop, move, clock, befall, says):
    """A filter that is out of use, not there, or of another life of its store is refused with the reason."""
    shop("files")
    move("shared")
    befall()

    if says is None:
        assert copy("product", "files", clock).plan().rows == ROWS
        return
    with pytest.raises(RebuildError, match=says):
        copy("product", "files", clock).run()


def test_a_row_that_is_deleted_meanwhile_names_no_filter_to_copy(shop, move, clock, monkeypatch):
    """As one that was deleted before."""
    shop("files")
    move("shared")
    current = state.table.current

    def overtaken(name):
        seen = current(name)
        GuardState.objects.all()._raw_delete("default")
        return seen

    monkeypatch.setattr(state.table, "current", overtaken)

    with pytest.raises(RebuildError, match="there is no filter to copy"):
        copy("product", "files", clock).plan()


def test_a_kind_whose_bits_cannot_be_joined_is_refused(shop, move, clock, monkeypatch):
    """A cuckoo filter is rebuilt from its rows."""
    monkeypatch.setattr(registry["product"], "filter", "cuckoo")
    shop("files")
    move("shared")

    hints = [each.hint for each in run_checks(tags=["bloomguard"], include_deployment_checks=True)]
    assert any(hint.startswith("Run manage.py rebuild_filter product, which builds it in") for hint in hints if hint)
    with pytest.raises(RebuildError, match="a cuckoo filter cannot be copied"):
        copy("product", "files", clock).plan()


def test_the_command_copies(shop, move, clock, monkeypatch, capsys):
    """``rebuild_filter product --from-store files``, and its errors."""
    monkeypatch.setattr(rebuild, "EXPIRY_SECONDS", 0.0)
    shop("files")
    move("shared")
    for arguments, says in (
        (("--from-store", "nowhere"), "there is no store 'nowhere'"),
        (("--from-store", "shared"), "to the same store"),
    ):
        with pytest.raises(CommandError, match=says):
            call_command("rebuild_filter", "product", *arguments)

    call_command("rebuild_filter", "product", "--from-store", "files", "--dry-run")
    call_command("rebuild_filter", "product", "--from-store", "files")

    assert f"product: {ROWS:,} rows in a bitmap filter of" in capsys.readouterr().out
    assert stores["files"].names("product") == []


def test_folders_that_do_not_exist_are_not_one_store(shop, settings, tmp_path, clock):
    """The new one is made by the copy, and the path of the old one is mistyped: the error names that."""
    shop("files")
    backend = "bloomguard.stores.file.FileStore"
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {"BACKEND": backend, "OPTIONS": {"path": tmp_path / "new"}},
            "files": {"BACKEND": backend, "OPTIONS": {"path": tmp_path / "filtres"}},
        }
    }
    forget()

    with pytest.raises(RebuildError, match="/filtres"):
        copy("product", "files", clock).plan()


def test_a_shard_is_read_whole_and_merged_once(shop):
    """A merge tells how many bits were missing: all of them first, none the second time."""
    shop("files")
    generation = registry["article"]._runtime.active_filter.generation(*_active("article"))
    whole = generation.read_shard(0)
    empty = stores["shared"].create("article", "twin", generation.layout)

    assert empty.merge(0, whole.body) == int.from_bytes(whole.body, "big").bit_count() > ROWS
    empty.seal()
    assert empty.merge(0, whole.body) == 0
    assert empty.read_shard(0).body == Frame.open(whole.buffer).body


def _active(name):
    row = state.table.current(name)
    return row, row.active
