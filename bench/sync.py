"""What it costs a write to keep filters true, and all other statements: ``make bench-sync`` (six minutes).

The same statements with bloomguard's hooks in Django and without them, in turns and on the same tables: on SQLite as
``startproject`` leaves it, on SQLite in WAL mode, where a COMMIT waits for no disk, on PostgreSQL and on MariaDB; with
filters in files and in Valkey. A comparison is a median over the rounds of a database's one interleaved run. What an
INSERT adds, and what statements of other tables pay, is also given as CPU time of this process: whatever else runs does
not count.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import databases
from .report import Report, Seconds, interleave, median, ratio

ROUNDS = {"default": 40, "wal": 300, "postgresql": 120, "mariadb": 120}
OTHER_ROUNDS = 300
BULK_ROUNDS = 7
BATCH = 5
MANY = 20  # of what takes microseconds: fewer would measure the noise
BULK = 10_000
ROWS = 10_000
UPDATED = 1_000_000
UPDATE_ROUNDS = 5
VENDORS = {**databases.VENDORS, "wal": "SQLite, WAL"}
STORES = {"default": ["file"], "wal": ["file"], "postgresql": ["file", "Valkey"], "mariadb": ["file", "Valkey"]}

#: What an INSERT may take of the same without bloomguard inside ``atomic``, if that takes 0.5 ms or more; what it may
#: add, in microseconds of CPU; and what ``bulk_create`` may take of the same without bloomguard.
INSERT = {"file": 1.10, "Valkey": 1.30}
INSERT_CPU = {"file": 35, "Valkey": 70}
BULK_CREATE = {"file": 1.05, "Valkey": 1.20}
SLOW = 0.5e-3

#: Statements that no guard minds.
OTHERS = (
    "other table, INSERT by the ORM",
    "other table, UPDATE by the ORM",
    "other table, raw INSERT",
    "raw SELECT",
)

Work = Callable[[], object]


def configure(folder: str, servers: dict[str, Any]) -> None:
    """Django with these databases beside SQLite, two stores, and nothing installed but bloomguard."""
    import django
    from django.conf import settings

    from tests.support.servers import Valkey  # a real one, of our own

    settings.configure(
        SECRET_KEY="for the benchmark alone",
        INSTALLED_APPS=["bloomguard"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/db.sqlite3"},
            "wal": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{folder}/wal.sqlite3",
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"},
            },
            **servers,
        },
        DATABASE_ROUTERS=["tests.support.database.Router"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        BLOOMGUARD={
            "STORES": {
                "default": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": f"{folder}/filters"}},
                "Valkey": {"BACKEND": "bloomguard.stores.redis.RedisStore", "OPTIONS": {"url": Valkey().url}},
            }
        },
        USE_TZ=True,
    )
    django.setup()


class Hooks:
    """What bloomguard has put into Django; it can be taken out, and put back, within a microsecond."""

    def __init__(self, connection: Any) -> None:
        from django.db.models.signals import post_save
        from django.db.models.sql.compiler import SQLInsertCompiler, SQLUpdateCompiler

        self._signal: Any = post_save
        self._wrappers = connection.execute_wrappers
        self._on: list[tuple[Any, str, Any]] = []
        self._off: list[tuple[Any, str, Any]] = []
        for compiler in (SQLInsertCompiler, SQLUpdateCompiler):
            for name in ("execute_sql", "execute_returning_sql"):
                if unhooked := vars(compiler).get(f"_bloomguard_{name}"):
                    self._on.append((compiler, name, vars(compiler)[name]))
                    self._off.append((compiler, name, unhooked))
        cache = type(post_save.sender_receivers_cache)
        self._on += [(post_save, "receivers", post_save.receivers), (post_save, "sender_receivers_cache", cache())]
        self._off += [(post_save, "receivers", []), (post_save, "sender_receivers_cache", cache())]
        self._watch = list(self._wrappers)
        assert self._watch, "no statement is watched: there is nothing to measure"

    def on(self) -> None:
        for thing, name, value in self._on:
            setattr(thing, name, value)
        self._wrappers[:] = self._watch

    def off(self) -> None:
        for thing, name, value in self._off:
            setattr(thing, name, value)
        self._wrappers.clear()


class Site:
    """The tables and guards of one database."""

    def __init__(self, alias: str) -> None:
        from django.db import connections, models

        databases.use(alias)
        self.alias = alias
        self.connection: Any = connections[alias]
        self._migrate()
        about = {"name": models.CharField(max_length=100), "__module__": __name__}
        self.guarded = {}
        for store in STORES[alias]:
            self.guarded[store] = self._table(f"{store}_{alias}", about)
            self._guard(store)
        self.other = self._table(f"Other_{alias}", about)
        self.connection.ensure_connection()
        self.hooks = Hooks(self.connection)

    def _migrate(self) -> None:
        from django.core.management import call_command

        call_command("migrate", database=self.alias, verbosity=0)

    def _table(self, name: str, about: dict[str, Any]) -> Any:
        from django.db import models

        meta = type("Meta", (), {"app_label": "bench"})
        fields = {key: value.clone() if isinstance(value, models.Field) else value for key, value in about.items()}
        model: Any = type(name, (models.Model,), {**fields, "Meta": meta})
        with self.connection.schema_editor() as editor:
            editor.create_model(model)
        model.objects.bulk_create(model(name="a row") for _ in range(ROWS))
        return model

    def _guard(self, store: str) -> None:
        from bloomguard.guards import Guard, registry
        from bloomguard.rebuild import Rebuild

        alias = "default" if store == "file" else store
        about = {"name": f"{store}-{self.alias}".lower(), "store": alias, "capacity": 1_000_000}
        guard = type("BenchGuard", (Guard,), about)(self.guarded[store])
        registry.add(guard)
        Rebuild(guard).run()

    def check(self) -> None:
        """The filters were written to all along, and have what was written with the hooks in place."""
        from bloomguard.guards import registry
        from bloomguard.state import table as state
        from bloomguard.state.row import ARMED
        from bloomguard.state.verdicts import Verdict

        self.hooks.on()
        for store, model in self.guarded.items():
            guard = registry[f"{store}-{self.alias}".lower()]
            assert state.table.current(guard.name).status == ARMED
            assert guard.verdict(model.objects.create(name="the last").pk) is Verdict.MAYBE
            assert guard.verdict(-1) is Verdict.ABSENT

    # -- contestants

    def repeat(self, work: Work, *, hooked: bool, times: int = BATCH) -> Work:
        """``work`` so many times, after one that is not counted: to switch the hooks empties Python's caches."""
        switch = self.hooks.on if hooked else self.hooks.off

        def prepare() -> None:
            switch()
            if times > 1:
                work()

        def run() -> None:
            for _ in range(times):
                work()

        run.prepare = prepare  # type: ignore[attr-defined]
        return run

    def both(self, name: str, work: Work, **how: Any) -> dict[str, Work]:
        return {
            f"{name}, with": self.repeat(work, hooked=True, **how),
            f"{name}, without": self.repeat(work, hooked=False, **how),
        }

    def inserts(self, store: str) -> dict[str, Work]:
        from django.db import transaction

        create = self.guarded[store].objects.create

        def plain() -> None:
            create(name="a row")

        def atomic() -> None:
            with transaction.atomic(using=self.alias):
                create(name="a row")

        again = {f"{store}, INSERT inside atomic, without, again": self.repeat(atomic, hooked=False)}
        return self.both(f"{store}, INSERT", plain) | self.both(f"{store}, INSERT inside atomic", atomic) | again

    def inserts_alone(self, store: str) -> dict[str, Work]:
        """INSERTs without their COMMIT; to be run in one transaction."""
        create = self.guarded[store].objects.create
        return self.both(f"{store}, INSERT alone", lambda: create(name="a row"), times=MANY)

    def bulk(self, store: str) -> dict[str, Work]:
        model = self.guarded[store]

        def create() -> None:
            model.objects.bulk_create([model(name="a row") for _ in range(BULK)])

        return self.both(f"{store}, bulk_create", create, times=1)

    def selects(self) -> dict[str, Work]:
        rows = self.guarded["file"].objects
        return self.both("SELECT by the ORM", lambda: rows.get(pk=77), times=MANY)

    def others(self) -> dict[str, Work]:
        """Statements that bring no key of any guard; to be run in one transaction: a COMMIT hides what they take."""
        other = self.other.objects
        table = self.other._meta.db_table

        def raw(sql: str, *parameters: str) -> Work:
            def run() -> None:
                with self.connection.cursor() as cursor:
                    cursor.execute(sql, parameters)

            return run

        works = (
            lambda: other.create(name="a row"),
            lambda: other.filter(pk=77).update(name="b"),
            raw(f"INSERT INTO {table} (name) VALUES (%s)", "x"),
            raw("SELECT 1"),
        )
        found: dict[str, Work] = {}
        for name, work in zip(OTHERS, works, strict=True):
            found |= self.both(name, work, times=MANY)
        return found


class BigTable:
    """A table of :data:`UPDATED` rows, and an UPDATE that may make a key of each."""

    def __init__(self, site: Site) -> None:
        from django.db import models
        from django.db.models import Q

        from bloomguard.guards import Guard, registry

        about = {"name": models.CharField(max_length=100), "published": models.BooleanField(default=True)}
        self.site = site
        self.model = site._table(f"Big_{site.alias}", {**about, "__module__": __name__})
        for _ in range(UPDATED // ROWS - 1):
            self.model.objects.bulk_create(self.model(name="a row") for _ in range(ROWS))
        options = {"name": f"big-{site.alias}", "alive": Q(published=True), "capacity": 2 * UPDATED}
        self.guard = type("BigGuard", (Guard,), options)(self.model)
        registry.add(self.guard)

    def run(self, *, hooked: bool) -> tuple[float, float]:
        """Return the seconds that the UPDATE takes, and the megabytes by which the process grows meanwhile."""
        from bloomguard.rebuild import Rebuild

        Rebuild(self.guard).run()  # on MariaDB the UPDATE before has fenced the guard
        (self.site.hooks.on if hooked else self.site.hooks.off)()
        Path("/proc/self/clear_refs").write_text("5")  # the highest size begins anew
        before, began = _megabytes("VmRSS"), time.perf_counter()
        changed = self.model.objects.update(published=hooked)
        seconds, grown = time.perf_counter() - began, _megabytes("VmHWM") - before
        self.site.hooks.on()
        assert changed == UPDATED
        return seconds, grown

    def tell(self, report: Report) -> None:
        rounds = [(self.run(hooked=False)[0], *self.run(hooked=True)) for _ in range(UPDATE_ROUNDS)]
        name = f"{VENDORS[self.site.alias]}: update() of {UPDATED:,} watched rows"
        times = statistics.median(ours / theirs for theirs, ours, _ in rounds)
        report.add(name, times, against="without bloomguard", at_most=1.5)
        report.add(name, statistics.median(grown for *_, grown in rounds), "MB", against="before it", at_most=30)


def _megabytes(line: str) -> float:
    return int(re.findall(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1e3


def more(taken: Seconds, name: str) -> float:
    """The microseconds that the hooks add to one of ``MANY`` statements: the median of the differences."""
    pairs = zip(taken[f"{name}, with"], taken[f"{name}, without"])
    return statistics.median(ours - theirs for ours, theirs in pairs) / MANY * 1e6


def tell(report: Report, alias: str, taken: Seconds) -> None:
    """One database's rows."""
    vendor = VENDORS[alias]
    plain, atomic = "file, INSERT, without", "file, INSERT inside atomic, without"
    report.add(f"{vendor}: INSERT without bloomguard", median(taken, plain) / BATCH * 1e3, "ms")
    report.add(f"{vendor}: the same inside atomic", median(taken, atomic) / BATCH * 1e3, "ms")
    for store in STORES[alias]:
        by_itself, within = f"{store}, INSERT", f"{store}, INSERT inside atomic"
        is_slow = median(taken, f"{within}, without") / BATCH >= SLOW
        of_insert = INSERT[store] if is_slow else None
        noise = ratio(taken, f"{within}, without, again", f"{within}, without")
        report.add(f"{vendor}, {within}, without bloomguard", noise, against="itself: the noise")
        for ours, theirs, target in (
            (by_itself, by_itself, None),
            (by_itself, within, of_insert),
            (within, within, of_insert),
        ):
            against = "without, inside atomic" if theirs == within else "without bloomguard"
            value = ratio(taken, f"{ours}, with", f"{theirs}, without")
            report.add(f"{vendor}, {ours}", value, against=against, at_most=target)
        report.add(
            f"{vendor}, {store}, INSERT", more(taken, f"{store}, INSERT alone"), "us of CPU",
            against="without bloomguard", at_most=INSERT_CPU[store],
        )  # fmt: skip
        name = f"{store}, bulk_create"
        report.add(
            f"{vendor}, {name} of {BULK:,}", ratio(taken, f"{name}, with", f"{name}, without"),
            against="without bloomguard", at_most=BULK_CREATE[store],
        )  # fmt: skip
    name = "SELECT by the ORM"
    report.add(
        f"{vendor}: {name}", ratio(taken, f"{name}, with", f"{name}, without"),
        against="without bloomguard", at_most=1.01,
    )  # fmt: skip
    for name in OTHERS:
        report.add(
            f"{vendor}: {name}", more(taken, name), "us of CPU",
            against="without bloomguard", at_most=0.8,
        )  # fmt: skip


def main() -> int:
    report = Report("sync", "Statements with bloomguard's hooks and without")
    report.start()
    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as folder:
        configure(folder, databases.servers(report))
        from django.db import connections, transaction

        for alias in connections:
            site = Site(alias)
            contestants = site.selects()
            bulk: dict[str, Work] = {}
            for store in STORES[alias]:
                contestants |= site.inserts(store)
                bulk |= site.bulk(store)
            taken = interleave(contestants, ROUNDS[alias])
            taken |= interleave(bulk, BULK_ROUNDS)
            alone = site.others()
            for store in STORES[alias]:
                alone |= site.inserts_alone(store)
            with transaction.atomic(using=alias):
                taken |= interleave(alone, OTHER_ROUNDS, clock=time.process_time)
            site.check()
            tell(report, alias, taken)
            if alias != "wal":
                BigTable(site).tell(report)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
