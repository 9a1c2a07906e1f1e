"""``manage.py rebuild_filter``: what it says, to people and to programs."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.core.management import BaseCommand, CommandError, call_command
from django.db import OperationalError, connection, connections, models
from django.test.utils import isolate_apps
from django.utils import timezone

from bloomguard import management
from bloomguard.exceptions import RebuildError, StoreUnavailable
from bloomguard.guards.registry import Registry, registry
from bloomguard.management.commands.rebuild_filter import Command
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, rebuild
from bloomguard.rebuild import source as sources
from bloomguard.state import table as states
from bloomguard.state.row import ARMED, FENCED
from bloomguard.stores import stores
from tests.shop.models import Article, Order, Place, Product
from tests.support import database
from tests.support.guarding import make_guard, registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock", "hasty"),
]

SHOP = ["product", "order", "article", "place", "price", "diary"]


def run(*arguments: str, command: Sequence[str] = ("rebuild_filter",)) -> str:
    out = io.StringIO()
    call_command(*command, *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("each_database")
def test_the_named_guards_are_built(capfd):
    """Each guard that is named is built once, in that order, and no other."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 2_001))
    Article.objects.create(slug="here")
    Article.objects.create(slug="hidden", deleted=True)

    said = run("product", "article", "product").splitlines()

    assert re.fullmatch(
        r"product: 2,000 rows in a bitmap filter of [\d.]+ KiB, built in [\d.]+ s after waiting [\d.]+ s for "
        r"other processes; exact for IDs of its range",
        said[0],
    )
    assert said[1].startswith("article: 1 row in a bloom filter of ")
    assert said[1].endswith("% now, 0.1% when full")
    assert len(said) == 2
    assert stores["default"].names("order") == []


def test_all_guards_are_built_if_none_is_named():
    """Without a name, every guard of the project."""
    said = run()

    assert {line.split(":")[0] for line in said.splitlines()} == {guard.name for guard in registry}
    assert all(states.table.current(name).active for name in SHOP)


def test_progress_is_shown_with_rate_and_time_left(capfd, monkeypatch):
    """A bar a guard, on the error stream: the rows so far and in all, how many a second, how long it will take."""
    monkeypatch.setattr(sources, "PAGE_ROWS", 100)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))

    run("product", "order")
    assert "rows/s" not in capfd.readouterr().err  # no terminal: cron would mail every step
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run("product", "order")

    shown = capfd.readouterr().err
    assert "product: 100%" in shown
    assert "1.00k/1.00k" in shown
    assert "rows/s" in shown


def test_whoever_builds_a_first_filter_is_told_who_must_not_write_any_more(capfd, monkeypatch):
    """Once for all guards that never had a filter and are to answer: what older processes write is not in it."""
    monkeypatch.setattr(type(registry["article"]), "mode", "shadow")
    run("product")
    first = capfd.readouterr().err

    run("product", "article", "order", "place")
    then = capfd.readouterr().err

    assert "product: the first filter. Rows that a process without the guard writes are not in it" in first
    assert "stop it, then run rebuild_filter product again" in first
    assert "order, place: the first filter." in then
    assert then.count("the first filter") == 1


def test_before_migrate_the_commands_say_so(capfd):
    """Without the table of states nothing is built, and the message is the command that makes the table."""
    missing = r"no table bloomguard_guardstate yet: run manage\.py migrate"
    with connection.schema_editor() as editor:
        editor.delete_model(GuardState)
    try:
        for arguments in (["product"], ["--if-needed"], ["--roll-back", "product"]):
            with pytest.raises(CommandError, match=missing):
                run(*arguments)
        for command in (["verify_filter"], ["switch_guards", "fence"]):
            with pytest.raises(CommandError, match=missing):
                call_command(*command)
        call_command("explain_guard", "/products/1/", urlconf="tests.shop.urls")
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(GuardState)

    assert re.search(f"^fault .*{missing}", capfd.readouterr().out, re.MULTILINE)
    assert stores["default"].names("product") == []


def test_quiet_says_nothing(capfd):
    """``-v 0`` prints nothing at all, on either stream."""
    assert run("product", "-v", "0") == ""
    assert run("product", "--dry-run", "-v", "0") == ""
    assert capfd.readouterr() == ("", "")


def test_json_gives_the_figures_and_nothing_else():
    """``--json``: one object, with each guard's report."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 501))

    (found,) = json.loads(run("product", "--json", "-v", "0"))["guards"]

    assert set(found) == {
        "name", "generation", "kind", "rows", "rows_verified", "capacity", "bytes", "error_rate",
        "error_rate_measured", "seconds", "waited_seconds",
    }  # fmt: skip
    assert (found["name"], found["rows"], found["error_rate"]) == ("product", 500, 0.001)
    assert found["generation"] == states.table.current("product").active


@pytest.mark.usefixtures("each_database")
def test_a_dry_run_tells_and_does_nothing():
    """``--dry-run``: rows, bytes, error rate; no generation, no row of state."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 5_001))

    said = run("product", "--dry-run")
    (found,) = json.loads(run("product", "--dry-run", "--json"))["guards"]

    assert re.fullmatch(
        r"product: about 5,000 rows; [\d.]+ KiB in 1 shard: a bitmap filter with room for 7,500, exact for IDs of its "
        r"range\n",
        said,
    )
    assert set(found) == {"name", "kind", "rows", "capacity", "error_rate", "bytes", "shards"}
    assert stores["default"].names("product") == []
    assert states.table.current("product").version == 0


def test_a_dry_run_tells_the_bytes_that_a_build_takes():
    """What is foretold is what is made."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 5_001))
    (planned,) = json.loads(run("product", "--dry-run", "--json"))["guards"]
    (built,) = json.loads(run("product", "--json"))["guards"]

    assert {name: planned[name] for name in ("kind", "bytes", "capacity")} == {
        name: built[name] for name in ("kind", "bytes", "capacity")
    }


def test_an_unknown_name_is_refused_with_those_there_are():
    """A guard that is not there is named, with all that are; nothing is built."""
    with pytest.raises(CommandError, match=r"no guard 'produkt'; known are .*product") as raised:
        run("product", "produkt")

    assert raised.value.returncode == 1
    assert stores["default"].names("product") == []


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("managed", [True, False])
@isolate_apps("tests.shop")
def test_a_table_that_is_not_there(managed):
    """An app that was not migrated is named with the command; how to make another table nobody can say."""

    class Unmade(models.Model):
        class Meta:
            app_label, db_table = "shop", "shop_unmade"

    Unmade._meta.managed = managed
    cure = r": run manage.py migrate shop( --database \w+)?, or the release that has renamed it$" if managed else "$"
    with registered(Unmade, name="unmade"):
        for options in ([], ["--dry-run"], ["--if-needed"]):
            with pytest.raises(CommandError, match=rf"^unmade: the database '\w+' has no table shop_unmade{cure}"):
                run("unmade", *options)


def test_a_table_that_a_newer_release_has_renamed(each_database):
    """The old release still runs, perhaps from cron: it is told the cause, also where it has a filter of the table."""
    run("article")
    with connections[database.current].schema_editor() as editor:
        editor.alter_db_table(Article, "shop_article", "shop_renamed")
    try:
        with pytest.raises(CommandError, match=r"^article: the database '\w+' has no table shop_article: "):
            run("article")
    finally:
        with connections[database.current].schema_editor() as editor:
            editor.alter_db_table(Article, "shop_renamed", "shop_article")


@pytest.mark.parametrize(
    ("command", "purpose"),
    [
        (["rebuild_filter"], "rebuild"),
        (["rebuild_filter", "--if-needed"], "rebuild"),
        (["filter_stats", "--watch=5s"], "show"),
        (["switch_guards", "shadow"], "switch"),
    ],
    ids=" ".join,
)
def test_without_guards_there_is_nothing_to_do(monkeypatch, command, purpose):
    """A deploy script may call a command before the first guard is registered; it says where one would be."""
    monkeypatch.setattr(management, "registry", Registry())

    assert run(command=command) == f"there is no guard to {purpose}: register one in an app's guards.py\n"
    assert json.loads(run("--json", command=command)) == {"guards": []}
    with pytest.raises(CommandError, match="no guard 'product'; known are none"):
        run("product", command=command)


def test_without_guards_nothing_is_verified(monkeypatch):
    """No success, as where no guard has a filter."""
    monkeypatch.setattr(management, "registry", Registry())

    with pytest.raises(CommandError, match=r"no guard to verify: register one in an app's guards\.py"):
        run(command=["verify_filter"])


def test_the_reminder_of_a_first_build_names_ten_guards():
    """Of hundreds nobody reads all names twice."""
    command, guards = Command(stderr=io.StringIO()), [make_guard(Product, name=f"guard-{n}") for n in range(300)]
    command._warn_of_first_builds(guards)

    said = command.stderr.getvalue()
    assert "guard-8, guard-9 and 290 more: the first filter." in said
    assert said.endswith("then run rebuild_filter again\n")


def test_one_reason_of_many_guards_is_one_line(monkeypatch):
    """A server that does not answer stops all of them; the names are those of its guards."""

    def unreachable(self):
        if self.guard.name != "order":
            raise StoreUnavailable("the server did not answer in time")
        raise RebuildError("order: for a test")

    monkeypatch.setattr(Rebuild, "prepare", unreachable)

    with pytest.raises(CommandError) as raised:
        run("product", "order", "article")
    assert str(raised.value) == (
        "product, article: the store 'default' cannot be used: the server did not answer in time. Start its server, or "
        "correct its OPTIONS\norder: for a test"
    )


@pytest.mark.parametrize("arguments", [["product"], ["product", "--dry-run"]])
def test_what_does_not_fit_is_refused_with_the_figures(arguments, monkeypatch):
    """A store without room: how much it takes and how much is left, exit code 1."""
    monkeypatch.setattr(type(stores["default"]), "free_bytes", lambda self: 100)

    with pytest.raises(CommandError, match=r"product: room for 1,000 keys .* takes [\d,]+ bytes; .* has 100 left"):
        run(*arguments)


@pytest.mark.parametrize("path", ["/proc/bloomguard", "/dev/null/bloomguard"])
def test_a_place_that_cannot_be_written_is_a_clear_error(path, settings):
    """A read-only place: which, as whom; no traceback."""
    settings.BLOOMGUARD = {
        "STORES": {"default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": path}}}
    }

    with pytest.raises(CommandError, match=r"product: .*cannot write .* as user \d+"):
        run("product")


def test_a_store_that_is_not_configured_is_a_clear_error(settings):
    """A backend that cannot be imported is named."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "nowhere.Store"}}}

    with pytest.raises(CommandError, match=r"'nowhere\.Store'"):
        run("product")


def test_one_that_fails_does_not_hide_the_others(monkeypatch):
    """Of several guards, those that could be built are built and reported; the exit code tells that one was not."""
    table = states.table
    seen = table.current("order")
    table.swap(seen, building="theirs", builder="elsewhere/1", builder_seen_at=timezone.now())
    out = io.StringIO()

    with pytest.raises(CommandError, match="order is being built by process 1 on elsewhere") as raised:
        call_command("rebuild_filter", "product", "order", "--json", stdout=out)

    assert raised.value.returncode == 75
    built, failed = json.loads(out.getvalue())["guards"]
    assert (built["name"], built["rows"]) == ("product", 0)
    assert failed == {"name": "order", "error": str(raised.value)}


@pytest.mark.parametrize("mistake", ["store", "lookup"])
@pytest.mark.parametrize("option", ["", "--dry-run", "--if-needed"])
def test_a_guard_with_a_mistake_stops_no_other(option, mistake):
    """By cron too: the message names the guard, and the others are built."""
    error = pytest.raises(CommandError, match=r"^astray: .*nowhere")
    with registered(Place, name="astray", **{mistake: "nowhere"}), error as raised:
        run(*filter(None, [option]))

    assert raised.value.returncode == 1
    is_built = GuardState.objects.filter(name="product", status=ARMED).exists()
    assert is_built == (option != "--dry-run")


class NeedsTenant:
    """Orders are in the database of a tenant, and none is set."""

    def db_for_write(self, model, **hints):
        if model is Order:
            raise LookupError("no tenant is set")


@pytest.mark.parametrize("option", ["", "--dry-run", "--if-needed"])
def test_a_router_that_raises_stops_no_other_guard(settings, option):
    """Without a hint, it does not say where the rows of one guard are; the others are built."""
    settings.DATABASE_ROUTERS = [NeedsTenant()]
    with pytest.raises(CommandError, match=r"^order: without hints, .*no tenant is set"):
        run("product", "order", *filter(None, [option]))

    is_built = GuardState.objects.filter(name="product", status=ARMED).exists()
    assert is_built == (option != "--dry-run")


def test_a_model_is_no_guard():
    """Whoever names the model learns the name of its guard."""
    with pytest.raises(CommandError, match=r"^there is no guard 'shop\.article'; that model has article$"):
        run("shop.article")


def test_a_store_that_does_not_answer_is_named(monkeypatch):
    """With the cure, for whoever reads the mail of a cron job."""
    monkeypatch.setattr(
        Rebuild, "complete", Mock(side_effect=StoreUnavailable("no connection to the server: refused."))
    )
    with pytest.raises(CommandError, match=r"^product: the store 'default' cannot be used: no .* refused\. Start its"):
        run("product")


def test_a_database_that_fails_stops_no_other_guard(monkeypatch):
    real = Rebuild._plan

    def plan(self):
        if self.guard.name == "order":
            raise OperationalError("no such server")
        return real(self)

    monkeypatch.setattr(Rebuild, "_plan", plan)
    with pytest.raises(CommandError, match=r"^order: no such server$"):
        run("product", "order")

    assert states.table.current("product").status == ARMED


def test_sigterm_cleans_up_as_ctrl_c_does(monkeypatch, from_the_command_line):
    """A container that is stopped leaves no generation behind, to which all writers would add."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Rebuild, "complete", lambda self: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(CommandError, match="interrupted") as raised:
        run("product")

    assert raised.value.returncode == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert states.table.current("product").building == ""
    assert stores["default"].names("product") == []


def test_another_program_that_calls_the_command_keeps_its_own_signals(monkeypatch):
    """A worker of a task queue or a pool is stopped by SIGTERM, and a loop that logs errors by Ctrl-C."""
    handlers = []

    def interrupted(self):
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(Rebuild, "complete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("product")

    assert handlers == [signal.getsignal(signal.SIGTERM)]
    assert stores["default"].names("product") == []


def test_ctrl_c_ends_with_130(from_the_command_line):
    """Interrupted, the command says which guards it has rebuilt before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rebuild, "complete", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(CommandError, match=r"interrupted \(rebuilt before: none\)") as raised:
            run("product")

    assert raised.value.returncode == 130
    assert stores["default"].names("product") == []
    assert states.table.current("product").status == FENCED  # there was nothing to serve before


def test_a_full_disk_is_a_clear_error_and_the_old_generation_serves(start):
    """The kernel refuses the space, in a real process: exit code 1, the figures, no traceback, nothing lost."""
    Product.objects.create(pk=1)
    run("product")
    active = states.table.current("product").active
    Product.objects.bulk_create(Product(pk=pk * 1_000_003) for pk in range(2, 40_000))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, -1))\n"
        "from tests.support import child\n"
        "try: child.main()\n"
        "finally: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"  # what measures coverage writes at the end
    )

    child = start("rebuild_filter", "product", "--skip-checks", code=code)
    _, said = child.communicate(timeout=60)

    assert child.returncode == 1
    assert re.search(r"product: cannot make a filter of [\d,]+ bytes.*File too large", said)
    assert "Traceback" not in said
    assert stores["default"].names("product") == [active]
    assert states.table.current("product").active == active


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (1_023, "1023 bytes"), (1_536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_told_in_units(size, said):
    """Bytes in the largest unit that keeps the number above one."""
    assert management.size_in_words(size) == said


def test_if_needed_does_nothing_without_a_reason(capfd):
    """``--if-needed`` after a build: exit code 0, no build, and the figures say why there is none."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    run("product")
    active = states.table.current("product").active

    said = run("product", "--max-age", "7d")

    assert said == "product needs no rebuild: 1,000 rows, 1,000 keys, 0.0% of them stale, capacity 1,500\n"
    assert states.table.current("product").active == active


def test_if_needed_builds_what_has_a_reason():
    """Of several guards those with a reason are built, and each reason is told."""
    run("product")
    states.table.fence("product", "a write was not proved")

    said = run("product", "order", "--if-needed", "-v", "1")

    assert "product needs a rebuild: it is fenced: a write was not proved\n" in said
    assert "order needs a rebuild: there is no filter yet\n" in said
    assert "product: 0 rows in a " in said
    assert states.table.current("product").status == ARMED
    assert states.table.current("order").active


def test_if_needed_tells_its_reasons_as_json():
    """``--json``: each guard with its reasons and what they were judged by, and the report of what was built."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    run("product")

    found = json.loads(run("product", "order", "--if-needed", "--json", "-v", "0"))["guards"]

    assert [(each["name"], each["reasons"]) for each in found] == [
        ("product", []),
        ("order", ["there is no filter yet"]),
    ]
    assert {name: found[0][name] for name in ("rows", "keys", "capacity")} == {
        "rows": 1_000, "keys": 1_000, "capacity": 1_500,
    }  # fmt: skip
    assert "generation" not in found[0]
    assert found[1]["generation"] == states.table.current("order").active


def test_if_needed_clears_away_what_was_kept_long_enough():
    """A standby whose time is over goes although nothing is built."""
    run("product")
    run("product", "--keep-standby", "1h")
    kept = len(stores["default"].names("product"))
    past = timezone.now() - timedelta(seconds=1)
    states.table.swap(states.table.current("product"), standby_until=past)

    run("product", "--if-needed")

    assert (kept, len(stores["default"].names("product"))) == (2, 1)


def test_a_roll_back_by_command():
    """``--keep-standby 1h``, then ``--roll-back``: the generation before answers again, once."""
    run("product")
    former = states.table.current("product").active
    run("product", "--keep-standby", "1h")

    (found,) = json.loads(run("--roll-back", "product", "--json"))["guards"]

    assert found == {"name": "product", "generation": former}
    assert states.table.current("product").active == former
    with pytest.raises(CommandError, match="no previous generation to roll back to"):
        run("--roll-back", "product")


@pytest.mark.parametrize("reason", ["no filter", "fenced", ""])
def test_it_says_if_nothing_is_kept_for_a_roll_back(reason):
    """A first build has nothing to keep, and nobody goes back to a filter that was disabled."""
    if reason != "no filter":
        run("product")
    if reason == "fenced":
        states.table.fence("product", "for a test")

    assert ("nothing is kept for a roll-back" in run("product", "--keep-standby", "1h")) == bool(reason)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--roll-back"], "name the guards"),
        (["--max-age", "1h", "--dry-run"], "excludes --dry-run and --roll-back"),
        (["--max-age", "1h", "--from-store", "other"], "excludes --roll-back, --if-needed and --max-age"),
        (
            ["--if-needed", "--max-age", "soon"],
            "'soon' is not a duration from 1s to 3650d; write a number with s, m, h or d, as in 30m or 1h",
        ),
        (["--keep-standby", "1"], "'1' is not a duration"),
        (["--keep-standby", "1h", "--roll-back", "product"], "excludes --roll-back and --from-store"),
        (["--keep-standby", "1h", "--from-store", "other"], "excludes --roll-back and --from-store"),
        (["--roll-back", "--dry-run", "product"], "not allowed with"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, said):
    """What is wrong is shown, with the cure; nothing is built."""
    with pytest.raises(CommandError, match=said):
        run(*arguments)

    assert stores["default"].names("product") == []


@pytest.mark.parametrize(
    "arguments",
    [["--roll-back"], ["--max-age", "1h", "--dry-run"], ["--from-store", "other", "--if-needed"]],
    ids=" ".join,
)
def test_options_that_exclude_each_other_are_wrong_usage(arguments):
    """Exit code 2, as where argparse finds it out."""
    with pytest.raises(CommandError) as raised:
        run(*arguments)
    assert raised.value.returncode == 2


def test_times_are_written_with_a_unit():
    """Seconds, minutes, hours and days."""
    assert [management.seconds(text) for text in ("90s", "30m", "1h", "7d")] == [90, 1_800, 3_600, 604_800]


def test_a_period_is_one_that_is_kept():
    """The limits that are shown are those of the option, not of all times."""
    for given in ("1y", "59s", "32d"):
        with pytest.raises(CommandError, match=f"'{given}' is not a duration from 1m to 31d"):
            call_command("filter_stats", f"--since={given}")


@pytest.mark.parametrize("given", ["", "7", "d", "-1s", "0s", "0d", "3651d", "999999999d", "9" * 20 + "s"])
def test_a_time_is_from_a_second_to_ten_years(given):
    """Any other is refused before anything is done: no clock of the system could wait so long, or it would not wait."""
    for arguments in (["rebuild_filter", f"--keep-standby={given}"], ["filter_stats", f"--watch={given}"]):
        with pytest.raises(CommandError, match="is not a duration from 1s to 3650d; write a number with s, m, h or d"):
            call_command(*arguments)
    assert states.table.current("product").active == ""


def test_call_command_takes_texts_as_a_shell_does():
    """Keyword arguments of a task or a test are converted as those of the command line, and refused as they are."""
    run("product")

    call_command("rebuild_filter", "product", if_needed=True, max_age="7d", keep_standby="1h", verbosity=0)
    call_command("filter_stats", "product", since="24h", stdout=io.StringIO())
    call_command("verify_filter", "product", sample="1000", verbosity=0)
    for command, option in (("rebuild_filter", "keep_standby"), ("verify_filter", "sample"), ("filter_stats", "since")):
        with pytest.raises(CommandError, match="'some' is not a"):
            call_command(command, "product", **{option: "some"})


def test_all_waits_are_told(monkeypatch, clock):
    """Two seconds before the scan, and two after the publication if a previous filter is dropped."""
    monkeypatch.setattr(rebuild, "EXPIRY_SECONDS", 2.0)
    monkeypatch.setattr(rebuild.time, "monotonic", clock)
    waited = [Rebuild(registry["product"], sleep=clock.sleep).run().waited_seconds for _ in range(2)]

    assert waited == [2.0, 4.0]


@pytest.mark.parametrize("command", ["rebuild_filter", "verify_filter", "filter_stats"])
def test_a_shell_refuses_a_store_in_the_memory_of_the_site(settings, monkeypatch, command):
    """A build in a shell's own memory would switch the guard off for the site; the site's process may build."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    call_command("rebuild_filter", "product", stdout=io.StringIO())
    before = states.table.current("product")

    monkeypatch.setattr(BaseCommand, "_called_from_command_line", True)
    with pytest.raises(CommandError, match="product: the store 'default' is in the memory of one process, so a"):
        call_command(command, "product")

    assert states.table.current("product") == before
    call_command("switch_guards", "shadow", "product", stdout=io.StringIO())


@pytest.mark.parametrize("command", ["rebuild_filter", "verify_filter", "filter_stats"])
def test_a_shell_leaves_out_such_a_store_if_no_guard_is_named(settings, monkeypatch, capsys, command):
    """Cron still builds the filters of the other guards."""
    settings.BLOOMGUARD = {
        "STORES": {
            "default": settings.BLOOMGUARD["STORES"]["default"],
            "memory": {"BACKEND": "bloomguard.stores.memory.MemoryStore"},
        }
    }
    call_command("rebuild_filter", "product", stdout=io.StringIO())
    monkeypatch.setattr(BaseCommand, "_called_from_command_line", True)
    monkeypatch.setattr(registry, "_guards", {"product": registry["product"]})
    with registered(Product, name="own", lookup="name", store="memory"):
        call_command(command)

    said = capsys.readouterr().out
    assert "own: left out: the store 'memory' is in the memory of one process" in said
    assert "product" in said
