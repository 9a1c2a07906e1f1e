"""``manage.py verify_filter``: what it finds, what it does about it, and what it says."""

from __future__ import annotations

import io
import json
import re
import signal
import uuid
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from bloomguard.exceptions import RebuildError, StoreError
from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild, pages, run_all, verify
from bloomguard.rebuild import source as sources
from bloomguard.rebuild.verify import Verification
from bloomguard.state import table as states
from bloomguard.state.row import FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Order, Place, Product
from tests.support import database
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock", "hasty"),
]


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("verify_filter", *arguments, stdout=out)
    return out.getvalue()


def insert_unseen(table: str, **columns: object) -> None:
    """A row as another program writes it."""
    names, values = ", ".join(columns), ", ".join(map(repr, columns.values()))
    with closing(database.unseen(connections[database.current])) as cursor:
        cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({values})")


@pytest.fixture
def rows(fresh, clock, hasty) -> None:
    """Rows of every kind of key, all filters built."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 2_001))
    Order.objects.bulk_create(Order(id=uuid.UUID(int=number << 70)) for number in range(1, 501))
    Article.objects.bulk_create(Article(slug=f"a{number}", deleted=number % 2 == 0) for number in range(100))
    Place.objects.bulk_create(Place(country="de", slug=f"p{number}") for number in range(100))
    due = [registry[name] for name in ("product", "order", "article", "place")]
    for built in run_all([Rebuild(guard, sleep=clock.sleep, probes=1_000) for guard in due], clock.sleep):
        assert not isinstance(built, RebuildError), built


@pytest.mark.usefixtures("each_database", "rows")
def test_a_true_filter_is_found_true(monkeypatch):
    """All rows, by integer, UUID, text and several fields, in one page or many: nothing is missing, nothing changes."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 300)
    before = states.table.current("product")

    said = run("product", "order", "article", "place").splitlines()

    assert re.fullmatch(
        r"product: all 2,000 rows are in its filter; exact for IDs of its range; [\d.]+% of its "
        r"keys are stale; [\d.]+ s",
        said[0],
    )
    assert [line.partition(" rows are")[0] for line in said[1:]] == [
        "order: all 500",
        "article: all 50",
        "place: all 100",
    ]
    assert states.table.current("product") == before


@pytest.mark.usefixtures("each_database", "rows")
def test_a_missing_row_is_found_and_fences(caplog):
    """A row that no sync saw: exit code 1, requests pass from then on, and the key is in no log."""
    for name, columns, value in [
        ("product", {"id": 5_000, "name": "x"}, 5_000),
        ("order", {"id": f"{77:032x}"}, uuid.UUID(int=77)),
        ("place", {"country": "fr", "slug": "nice"}, ("fr", "nice")),
    ]:
        insert_unseen(f"shop_{name}", **columns)
        assert registry[name].verdict(value) is Verdict.ABSENT, name

        with pytest.raises(CommandError, match=f"missing from the filter of {name}: run rebuild_filter") as raised:
            run(name)
        states.table.forget()

        assert raised.value.returncode == 1, name
        assert states.table.current(name).status == FENCED, name
        assert registry[name].verdict(value) is Verdict.UNKNOWN, name
    assert "5000" not in caplog.text
    assert "nice" not in caplog.text


@pytest.mark.usefixtures("rows")
def test_repair_builds_anew():
    """With --repair the filter that lacks a row is built anew at once, and the command ends well."""
    insert_unseen("shop_product", id=5_000, name="x")

    figures = json.loads(run("product", "order", "--repair", "--json"))["guards"]

    assert [(each["name"], each["missing"], each["repaired"]) for each in figures] == [
        ("product", 1, True),
        ("order", 0, False),
    ]
    assert registry["product"].verdict(5_000) is Verdict.MAYBE
    assert registry["product"].verdict(6_000) is Verdict.ABSENT


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("error", ["order: the disk is gone", "the disk is gone"])
def test_one_that_cannot_be_verified_stops_no_other(monkeypatch, error):
    """The others are verified, and with --repair built anew; then the command names the one, and fails."""
    insert_unseen("shop_product", id=5_000, name="x")
    verify = Verification.run

    def fail(self):
        if self.guard.name == "order":
            raise StoreError(error)
        return verify(self)

    monkeypatch.setattr(Verification, "run", fail)

    with pytest.raises(CommandError, match=r"^order: the disk is gone$"):
        run("order", "product", "--repair", "--json")

    assert registry["product"].verdict(5_000) is Verdict.MAYBE
    assert registry["product"].verdict(6_000) is Verdict.ABSENT


@pytest.mark.usefixtures("rows")
def test_one_that_cannot_be_rebuilt_hides_no_figures(monkeypatch, capsys):
    """What was found, and what was built anew, is printed all the same."""
    insert_unseen("shop_product", id=5_000, name="x")
    insert_unseen("shop_order", id=f"{77:032x}")
    refuse = Rebuild.refuse

    def fail(self):
        if self.guard.name == "order":
            raise RebuildError("order: for a test")
        return refuse(self)

    monkeypatch.setattr(Rebuild, "refuse", fail)

    with pytest.raises(CommandError, match=r"^order: for a test\nrows are missing from the filter of order"):
        call_command("verify_filter", "order", "product", "--repair", "--json")

    figures = json.loads(capsys.readouterr().out)["guards"]
    assert [(each["name"], each["missing"], each["repaired"]) for each in figures] == [
        ("order", 1, False),
        ("product", 1, True),
    ]


@pytest.mark.usefixtures("rows")
def test_figures_for_programs():
    """--json prints one object: what was verified, how wrong the filter is and how much of it is stale."""
    Product.objects.filter(pk__gt=1_000).delete()

    (figures,) = json.loads(run("product", "--json"))["guards"]

    assert figures["name"] == "product"
    assert figures["generation"] == states.table.current("product").active
    assert (figures["rows"], figures["missing"], figures["repaired"]) == (1_000, 0, False)
    assert figures["stale_share"] == pytest.approx(0.5, abs=0.02)
    assert 0 <= figures["error_rate_measured"] <= figures["error_rate"] == 0.001


@pytest.mark.usefixtures("each_database", "rows")
def test_a_sample_asks_for_about_so_many():
    """--sample N reads N random rows, in turn all if there are fewer, and finds what is missing among them."""
    for name in ("product", "order", "article"):
        found = Verification(registry[name], sample=200).run()

        assert (found.guard, found.missing) == (name, 0)
        assert 40 <= found.rows <= 200, name


@pytest.mark.usefixtures("each_database", "rows")
def test_a_sample_as_large_as_the_table_is_all_rows():
    """No row is read twice, and no place without a row is tried; a smaller sample is called one."""
    assert run("product", "--sample", "3").startswith("product: all 3 rows of the sample ")
    for given in ("2000", "3000", "1" + 23 * "0"):
        assert run("product", "--sample", given).startswith("product: all 2,000 rows are "), given


@pytest.mark.usefixtures("rows")
def test_a_sample_finds_what_is_missing_everywhere():
    """Where half of the rows are missing a sample will do."""
    for pk in range(3_001, 5_001):
        insert_unseen("shop_product", id=pk, name="x")

    assert Verification(registry["product"], sample=400).run().missing > 50


def test_so_many_missing_rows_are_enough(rows, monkeypatch, capsys):
    """It stops looking once there are very many: the filter has to be built anew anyway."""
    monkeypatch.setattr(verify, "MOST_MISSING", 10)
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    for pk in range(3_001, 3_501):
        insert_unseen("shop_product", id=pk, name="x")

    found = Verification(registry["product"]).run()

    assert found.missing >= 10
    assert found.rows < 2_500


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("why", ["fenced", "cold", "elsewhere"])
def test_what_does_not_answer_is_not_verified(why, clock, settings, tmp_path):
    """Fenced, never built, or of another store: requests pass anyway, and that is what is said."""
    if why == "fenced":
        states.table.fence("product", "for a test")
    if why == "elsewhere":
        settings.BLOOMGUARD = {
            "STORES": {
                "default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": tmp_path / "other"}}
            }
        }
    name = "diary" if why == "cold" else "product"

    out = io.StringIO()
    with pytest.raises(CommandError, match="nothing was verified, because no filter answers: run rebuild_filter"):
        call_command("verify_filter", name, stdout=out)
    assert out.getvalue() == f"{name}: it has no usable filter, so there is nothing to verify; requests pass\n"


def test_rows_that_come_and_go_meanwhile_are_no_mistakes(each_database, clock, monkeypatch):
    """A row deleted between its page and its check has left a filter that discards; one that came is in it."""
    with registered(Product, filter="cuckoo", name="counted") as guard:
        Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 501))
        Rebuild(guard, sleep=clock.sleep).run()
        monkeypatch.setattr(sources, "PAGE_ROWS", 100)
        check = verify._suspects

        def meanwhile(*args):
            if not Product.objects.filter(pk=9_000).exists():
                Product.objects.filter(pk__lte=50).delete()
                Product.objects.create(pk=9_000)
            return check(*args)

        monkeypatch.setattr(verify, "_suspects", meanwhile)
        monkeypatch.setattr(pages, "ThreadPoolExecutor", Inline)  # SQLite has a writer at a time
        found = Verification(guard).run()

    assert found.missing == 0
    assert found.rows > 400


class Inline:
    """An executor that does the work where it is given."""

    def __init__(self, workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def submit(self, function, *args):
        from concurrent.futures import Future

        done = Future()
        done.set_result(function(*args))
        return done


@pytest.mark.usefixtures("rows")
def test_a_filter_that_was_replaced_meanwhile_is_no_mistake(monkeypatch, clock):
    """A rebuild publishes another generation while the old one is verified: the guard itself is asked in the end."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    monkeypatch.setattr(pages, "ThreadPoolExecutor", Inline)
    check, guard = verify._suspects, registry["product"]

    def meanwhile(*args):
        if not Product.objects.filter(pk=9_000).exists():
            Rebuild(guard, sleep=clock.sleep).run()
            Product.objects.create(pk=9_000)
        return check(*args)

    monkeypatch.setattr(verify, "_suspects", meanwhile)

    assert Verification(guard).run().missing == 0
    assert guard.verdict(9_000) is Verdict.MAYBE


@pytest.mark.parametrize("given", ["0", "-1", "many"])
def test_a_sample_is_a_number_of_rows(given):
    """Anything else is refused, with the cure."""
    with pytest.raises(CommandError, match=r"is not a number of rows; give a number from 1 on"):
        run("product", f"--sample={given}")


def test_an_unknown_guard_is_named():
    """A name that no guard has is refused with those that there are."""
    with pytest.raises(CommandError, match=r"no guard 'nobody'; known are article"):
        run("nobody")


@pytest.mark.usefixtures("rows")
def test_ctrl_c_ends_it_cleanly(start):
    """Stopped in the middle it says so in one line, and nothing has changed."""
    before = states.table.current("product")
    child = start(
        "verify_filter",
        "product",
        "--skip-checks",
        BLOOMGUARD_STOP="bloomguard.rebuild.verify:Verification._count_missing",
    )
    assert child.stdout.readline() == "reached\n"

    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 130
    assert said.splitlines()[-1] == "CommandError: interrupted; a guard is fenced if a missing row was found before"
    assert "Traceback" not in said
    assert states.table.current("product") == before
