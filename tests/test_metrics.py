"""Figures: what processes counted is brought to the stores, and read from there."""

from __future__ import annotations

import _thread
import http.client
import io
import json
import os
import re
import signal
import time
from datetime import datetime, timedelta, timezone
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from bloomguard import metrics as figures
from bloomguard.exceptions import StoreUnavailable
from bloomguard.guards import registry
from bloomguard.guards.counters import counts
from bloomguard.metrics import DAY, HOUR, MINUTE, Flusher, Series
from bloomguard.state.connection import StateConnection
from bloomguard.stores import stores
from bloomguard.stores.memory import MemoryStore
from tests.door.test_servers import SERVERS, ask, running
from tests.shop.models import Product

#: Noon of some day, in UTC.
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def memory(settings):
    """A store in memory, nothing counted."""
    settings.BLOOMGUARD = {
        "STORES": {
            alias: {"BACKEND": "bloomguard.stores.memory.MemoryStore"} for alias in ("default", "other")
        }
    }  # fmt: skip
    counts.forget()
    return stores["default"]


class Calendar:
    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now.timestamp()


@pytest.fixture
def calendar():
    return Calendar()


@pytest.fixture
def flusher(memory, calendar):
    return Flusher(calendar)


def count(name, times=1, guard="product"):
    for _ in range(times):
        counts.of(guard)[name]()


def read_product(start, end, step=MINUTE):
    return figures.read_series([registry["product"]], start, end, step)["product"]


def since(hours, until=NOON, step=MINUTE):
    return read_product(until - timedelta(hours=hours), until, step)


def test_what_was_counted_is_read(flusher, calendar):
    """Each flush brings what was counted since the one before, to the minute of the flush."""
    count("maybe", 3)
    count("blocked", 2)
    flusher.flush()
    flusher.flush()
    calendar.now += timedelta(minutes=2)
    count("maybe")
    flusher.flush()

    found = since(1, NOON + timedelta(minutes=5))
    assert found.length == len(found.times) == 60
    at_noon = found.times.index(NOON)
    assert found["maybe"][at_noon : at_noon + 4] == [3, 0, 1, 0]
    assert (found.total("maybe"), found.total("blocked"), found.total("cold")) == (4, 2, 0)
    assert found["cold"] == [0] * 60


def test_figures_in_the_projects_terms(flusher):
    """Sums: all verdicts, those that passed and why, look-ups avoided, the error rate, the time of a check."""
    for name, times in {
        "absent": 90, "out of range": 7, "maybe": 20, "cold": 4, "lease": 1, "blocked": 95, "query avoided": 2,
        "false positive": 3,
    }.items():  # fmt: skip
        count(name, times)
    counts.of("product")._samples.extend([1_500, 2_500])
    flusher.flush()

    found = since(1, NOON + timedelta(minutes=1))
    assert {name: found.total(name) for name in figures.SUMS} == {
        "absent": 97, "unknown": 5, "passed": 25, "checks": 122, "avoided": 97,
    }  # fmt: skip
    assert found["passed"][-1] == 25
    assert found.by_reason("unknown") == {"cold": 4, "lease": 1}
    assert found.false_positive_rate == 0.03
    assert found.mean_check_seconds == 2e-6


def test_of_nothing_nothing_is_said(flusher):
    """Without a check there is no rate and no time."""
    found = since(1)

    assert found.false_positive_rate is None
    assert found.mean_check_seconds is None
    assert found.by_reason("unknown") == {}


@pytest.mark.parametrize(
    ("hours", "step", "length"),
    [(1, MINUTE, 60), (24, 15 * MINUTE, 96), (24, HOUR, 24), (24 * 31, 6 * HOUR, 124), (24 * 31, DAY, 31)],
)
def test_every_span_has_its_steps(flusher, calendar, hours, step, length):
    """An hour by minutes, a day by quarters, a month by days: each has what happened in it, the first and the last."""
    first = NOON - timedelta(hours=hours)
    for calendar.now in (first, NOON - timedelta(minutes=1), NOON):
        count("maybe")
        flusher.flush()

    found = since(hours, step=step)
    assert (found.length, found.step, found.times[0]) == (length, step, first)
    assert found["maybe"] == [1, *[0] * (length - 2), 1]


def test_steps_begin_where_the_caller_says(flusher, calendar):
    """Days can be counted from any hour: from midnight in Tokyo, for one."""
    midnight = NOON.replace(hour=15)
    for calendar.now in (midnight - timedelta(seconds=1), midnight, midnight + timedelta(hours=23, minutes=59)):
        count("maybe")
        flusher.flush()

    found = read_product(midnight - timedelta(days=1), midnight + timedelta(days=1), DAY)
    assert found["maybe"] == [1, 2]


def test_a_long_time_costs_no_more_than_what_is_kept(flusher, memory, monkeypatch):
    """Whoever asks for fifty years gets zeros for what is not kept, without a look at pages that cannot be there."""
    asked = []
    read = memory.read_metrics
    monkeypatch.setattr(memory, "read_metrics", lambda pages: asked.extend(pages) or read(pages))
    count("maybe")
    flusher.flush()

    found = read_product(NOON - timedelta(days=18_000), NOON + timedelta(hours=1), DAY)
    assert found.total("maybe") == 1
    assert len(asked) <= 5


@pytest.mark.parametrize("step", [0, -60, 90, 61])
def test_a_step_is_of_whole_minutes(memory, step):
    """Another step is refused, and the message shows it."""
    with pytest.raises(ValueError, match=str(step)):
        since(1, step=step)


def test_a_time_that_ends_before_it_begins_is_empty(memory):
    """Nothing happened in no time."""
    found = read_product(NOON, NOON - timedelta(hours=1))

    assert (found.length, found.times, found["maybe"]) == (0, [], [])


def test_many_guards_are_read_in_one_trip(flusher, memory, monkeypatch):
    """All guards of a store are asked for at once, each gets its own."""
    trips = []
    read = memory.read_metrics
    monkeypatch.setattr(memory, "read_metrics", lambda pages: trips.append(1) or read(pages))
    count("maybe", 2)
    count("maybe", 3, guard="order")
    flusher.flush()

    found = figures.read_series(registry, NOON - timedelta(hours=1), NOON + timedelta(minutes=1))
    assert {name: series.total("maybe") for name, series in found.items() if series.total("maybe")} == {
        "product": 2, "order": 3,
    }  # fmt: skip
    assert set(found) == {guard.name for guard in registry}
    assert len(trips) == 1


def broken(*args):
    raise StoreUnavailable("the server did not answer in time")


def test_a_store_that_is_away_gets_its_figures_later(flusher, calendar, memory, monkeypatch):
    """What was counted while a store is away goes to the minute in which it is back, once."""
    with monkeypatch.context() as patch:
        patch.setattr(memory, "add_metrics", broken)
        for _ in range(3):
            count("unreachable", 2)
            flusher.flush()
            calendar.now += timedelta(minutes=1)
    flusher.flush()

    assert since(1, calendar.now + timedelta(minutes=1))["unreachable"][-1] == 6


def test_a_store_that_goes_away_between_two_pages_counts_nothing_twice(flusher, calendar, memory, monkeypatch):
    """The page of the day has the counts already when that of the month gets them."""
    add = memory.add_metrics
    with monkeypatch.context() as patch:
        patch.setattr(memory, "add_metrics", lambda page, cells: broken() if page.step == HOUR else add(page, cells))
        count("unreachable", 2)
        flusher.flush()
    count("unreachable")
    flusher.flush()

    end = calendar.now + timedelta(hours=1)
    assert [since(1, end, step).total("unreachable") for step in (MINUTE, HOUR)] == [3, 3]


def test_one_store_that_is_away_keeps_no_other_from_its_figures(flusher, memory, monkeypatch):
    """Reading says which guard's figures are missing and why; writing goes on with the next store."""
    monkeypatch.setattr(type(registry["order"]), "store", "other")
    monkeypatch.setattr(stores["other"], "add_metrics", broken)
    monkeypatch.setattr(stores["other"], "read_metrics", broken)
    count("maybe", guard="order")
    count("maybe")
    flusher.flush()

    found = figures.read_series([registry["order"], registry["product"]], NOON, NOON + timedelta(minutes=1))
    assert found["order"] == Series("order", int(NOON.timestamp()), 60, 1, {}, "the server did not answer in time")
    assert (found["product"]["maybe"], found["product"].error) == ([1], "")


def test_a_store_with_an_error_of_its_own_keeps_no_other_from_its_figures(flusher, memory, monkeypatch, caplog):
    """Neither one whose client raises what nobody expects: it is logged once, and its counts are kept."""
    monkeypatch.setattr(type(registry["order"]), "store", "other")
    with monkeypatch.context() as patch:
        patch.setattr(stores["other"], "add_metrics", lambda *args: 1 / 0)
        for _ in range(3):
            count("maybe", guard="order")
            count("maybe")
            flusher.flush()

    assert since(1, NOON + timedelta(minutes=1)).total("maybe") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "bloomguard could not write its counts to the store 'other', because of an internal error"
    ]
    flusher.flush()
    assert figures.read_series([registry["order"]], NOON, NOON + timedelta(minutes=1))["order"].total("maybe") == 3


def test_a_guard_that_is_gone_has_no_figures(flusher, memory):
    """What nobody guards any more, and what has no column, is not written."""
    count("maybe", guard="of-yesterday")
    count("of a version to come")
    flusher.flush()

    assert memory._pages == {}


def test_a_store_that_keeps_none_is_left_alone(flusher, memory, monkeypatch):
    """A store of the project's own need not keep figures: there are none, and nothing fails."""
    for method in ("add_metrics", "read_metrics"):
        monkeypatch.setattr(MemoryStore, method, getattr(MemoryStore.__mro__[1], method))
    count("maybe")
    flusher.flush()

    assert since(1, NOON + timedelta(minutes=1)).total("checks") == 0


def test_no_thread_starts_on_a_temporary_database(memory, monkeypatch):
    """Tests of a project leave no figures behind."""
    monkeypatch.setattr(StateConnection, "is_temporary", StateConnection.in_test_run)
    counted = Flusher()
    counted.start()

    assert counted._finished is None


def test_the_thread_flushes_at_the_end(flusher):
    """One thread flushes by itself, for the last time when the process ends."""
    flusher.start()
    finished = flusher._finished
    flusher.start()
    assert flusher._finished is finished
    count("maybe")
    flusher.stop()

    assert since(1, NOON + timedelta(minutes=1)).total("maybe") == 1
    assert finished.is_set()


def test_a_thread_that_cannot_be_started_is_started_later(flusher, monkeypatch):
    """A process at its limit of threads has figures when it is below it again, and ends as any other."""

    def refuse(run, given):
        raise RuntimeError("no more threads")

    with monkeypatch.context() as limited:
        limited.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(RuntimeError, match="no more threads"):
            flusher.start()
        flusher.stop()

    flusher.start()
    assert flusher._finished is not None
    flusher.stop()


def test_a_mistake_of_ours_is_said_once(flusher, caplog, monkeypatch):
    """Whatever goes wrong in the thread, it goes on, and says so once."""
    monkeypatch.setattr(counts, "read", lambda: 1 / 0)
    flusher.stop()
    for _ in range(3):
        flusher._run()

    assert [record.getMessage() for record in caplog.records] == [
        "bloomguard could not write its counts, because of an internal error"
    ]


def test_a_listener_that_raises_keeps_no_count_from_the_store(flusher, memory, caplog):
    heard = []
    flusher.listeners += [lambda news: 1 / 0, heard.append]
    for _ in range(3):
        counts.of("product")["maybe"]()
        flusher.flush()

    assert heard == [{("product", "maybe"): 1}] * 3
    assert since(1, NOON + timedelta(minutes=1)).total("maybe") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "bloomguard could not pass its counts on to a listener"
    ]


# -- real processes

SERVE = """
import sys
import django
django.setup()
from django.test import Client
from bloomguard import metrics
metrics.FLUSH_SECONDS = 0.05
client = Client(raise_request_exception=False, headers={"host": "localhost"})
for number in range(100):
    assert client.get("/products/%d/" % (10 + number)).status_code == 404
print("done", flush=True)
if sys.argv[1] == "linger":
    sys.stdin.read()
"""


def now():
    """A span around this moment, by hours: the test may run across the end of a minute."""
    this = datetime.now(timezone.utc)
    return read_product(this - timedelta(hours=2), this + timedelta(hours=1), HOUR)


def eventually(read, wanted):
    deadline = time.monotonic() + 60
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.fixture
def shop(build, settings, clock):
    settings.ALLOWED_HOSTS = ["testserver"]
    Product.objects.create(pk=7)
    build("product")


def test_processes_add_up(shop, start):
    """Three processes that end as they should bring all that they counted, the last of it when they end."""
    crew = [start("end", code=SERVE) for _ in range(3)]
    for each in crew:
        _, errors = each.communicate(timeout=60)
        assert each.returncode == 0, errors

    assert (now().total("blocked"), now().total("absent")) == (300, 300)


def test_a_killed_process_loses_only_the_last_seconds(shop, start):
    """What was flushed before a kill is there, once; the store goes on."""
    first = start("linger", code=SERVE)
    assert first.stdout.readline() == "done\n"
    assert eventually(lambda: now().total("blocked"), 100) == 100
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start("end", code=SERVE)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors

    assert now().total("blocked") == 200


# -- the command


@pytest.fixture
def told(memory):
    """Some figures of this very minute."""
    for name, times in {
        "absent": 990, "blocked": 990, "maybe": 1_200, "false positive": 10, "cold": 5, "lease": 1,
    }.items():  # fmt: skip
        count(name, times)
    Flusher().flush()


def test_the_table(told, capsys):
    """A row a guard, with what was blocked and avoided and both error rates, and why requests passed."""
    call_command("filter_stats", "product")

    lines = capsys.readouterr().out.splitlines()
    assert re.split("  +", lines[0]) == [
        "guard", "checks", "blocked", "avoided", "absent", "maybe", "unknown", "false positives", "error_rate",
        "time/check",
    ]  # fmt: skip
    assert lines[1].split() == [
        "product", "2,196", "990", "990", "990", "1,200", "6", "10", "(1.000%)", "0.100%", "-",
    ]  # fmt: skip
    assert lines[2] == "product: passed without an answer: cold 5, lease 1"
    assert len(lines[0]) == len(lines[1])


def test_json(told, capsys):
    """One object with all figures, for other programs."""
    call_command("filter_stats", "--json", "--since", "2d")

    found = json.loads(capsys.readouterr().out)
    assert datetime.fromisoformat(found["since"]) < datetime.fromisoformat(found["until"])
    [product] = [each for each in found["guards"] if each["name"] == "product"]
    assert product == {
        "name": "product", "checks": 2_196, "blocked": 990, "avoided": 990, "absent": 990, "maybe": 1_200,
        "unknown": 6, "unknown_reasons": {"cold": 5, "lease": 1}, "false_positives": 10, "false_absences": 0,
        "would_be_404": 0, "would_be_false_404": 0,
        "error_rate": 0.001, "error_rate_measured": 0.01, "check_microseconds": None, "error": "",
    }  # fmt: skip
    assert len(found["guards"]) == len(registry)


def test_nothing_was_counted(memory, capsys):
    """Zeros, and a sentence that says so."""
    call_command("filter_stats", "product", "--since", "15m")

    assert capsys.readouterr().out.splitlines()[-1] == "nothing was counted in this time"


def test_what_is_wrong_is_said(told, memory, capsys, monkeypatch):
    """Rows that were denied, and a store that does not answer, stand below the table."""
    count("false absence", 2)
    Flusher().flush()
    call_command("filter_stats", "product")
    assert "product: 2 rows that exist were found to be denied; run verify_filter" in capsys.readouterr().out

    monkeypatch.setattr(memory, "read_metrics", broken)
    call_command("filter_stats", "product")
    _, row, remark = capsys.readouterr().out.splitlines()
    assert row.split() == ["product", *["-"] * 7, "0.100%", "-"]  # not zeros, which would be figures
    assert remark == "product: no figures: the server did not answer in time"

    call_command("filter_stats", "product", "--json")
    [product] = json.loads(capsys.readouterr().out)["guards"]
    assert product["error"] == "the server did not answer in time"
    assert (product["checks"], product["blocked"], product["false_positives"]) == (None, None, None)


def test_a_guard_in_shadow_mode_says_what_it_would_have_done(told, capsys):
    """How many requests would have been answered 404, and how many of them falsely."""
    count("would-be 404", 12)
    count("would-be false 404")
    Flusher().flush()
    call_command("filter_stats", "product")

    assert capsys.readouterr().out.splitlines()[-1] == (
        "product: in shadow mode, 12 requests would have been answered 404, 1 falsely"
    )


def test_watching(told, capsys, monkeypatch):
    """Again and again, until Ctrl-C."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    call_command("filter_stats", "product", "--watch")

    assert pauses == [5.0] * 3
    assert capsys.readouterr().out.count("blocked") == 3


def test_figures_that_are_interrupted_are_no_success(told, monkeypatch):
    """Only what would go on for ever ends well by Ctrl-C."""
    monkeypatch.setattr(
        "bloomguard.management.commands.filter_stats.read_series", mock.Mock(side_effect=KeyboardInterrupt)
    )

    with pytest.raises(KeyboardInterrupt):
        call_command("filter_stats", "product", "--json")


def test_watching_ends_with_its_reader(shop, start):
    """As with ``filter_stats --watch | head -1``: each table is printed at once, and no error when the pipe closes."""
    child = start("filter_stats", "product", "--watch", "1s", "--skip-checks")
    assert child.stdout.readline().startswith("guard ")
    child.stdout.close()

    assert child.wait(timeout=60) == 0
    assert child.stderr.read() == ""


@pytest.mark.parametrize("since", ["1y", "30s", "32d", "1"])
def test_a_time_that_is_out_of_reach_is_refused(memory, since):
    """The message shows the value and what would do."""
    with pytest.raises(CommandError, match=f"'{since}'"):
        call_command("filter_stats", "--since", since)


def test_a_guard_that_is_not_there(memory):
    """The message lists those there are."""
    with pytest.raises(CommandError, match="no guard 'cities'; known are"):
        call_command("filter_stats", "cities")


def test_requests_are_counted_to_the_store(shop, calendar):
    """From a request to the store and back."""
    counts.forget()
    flusher = Flusher(calendar)
    for url in ("/products/7/", "/products/8/", "/products/9/"):
        Client().get(url)
    flusher.flush()

    found = since(1, NOON + timedelta(minutes=1))
    assert [found.total(name) for name in ("checks", "maybe", "blocked", "avoided")] == [3, 1, 2, 2]


@pytest.mark.parametrize("server", ["gunicorn gthread", "gunicorn preload"])
def test_servers_bring_their_figures_when_they_end(shop, start, server):
    """Workers that are told to end flush first, forked ones too."""
    with running(start, SERVERS[server]) as port:
        for number in range(10):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            assert ask(connection, f"/products/{number + 10}/")[0] == 404
            connection.close()

    assert eventually(lambda: now().total("blocked"), 10) == 10


def test_a_terminal_is_cleared_between_two_looks(told, monkeypatch):
    """Each table stands at the top of the screen; a file gets no control characters."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def sleep(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    screen, file = Terminal(), io.StringIO()
    call_command("filter_stats", "product", "--watch", stdout=screen)
    call_command("filter_stats", "product", "--watch", stdout=file)

    assert screen.getvalue().removeprefix("\x1b[H\x1b[2J") == file.getvalue()
