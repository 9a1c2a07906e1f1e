"""What it costs a write to keep filters true, and all other statements: ``make bench-sync`` (three minutes).

The same statements with bloomguard's hooks in Django and without them, in turns and on the same tables, on SQLite and
PostgreSQL, with filters in files and in Valkey. A comparison is a median over the rounds of one interleaved run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from .report import Report, Seconds, interleave, median, ratio

ROUNDS = {"default": 100, "postgresql": 60}
BULK_ROUNDS = 7
BATCH = 10
BULK = 10_000
ROWS = 10_000
VENDORS = {"default": "SQLite", "postgresql": "PostgreSQL"}  # by the alias of the database
STORES = ("file", "Valkey")

Work = Callable[[], object]


def configure(folder: str) -> None:
    """Django with two databases, two stores, and nothing installed but bloomguard."""
    import django
    from django.conf import settings

    from tests.servers import Valkey, postgresql  # real ones, of our own

    settings.configure(
        SECRET_KEY="for the benchmark alone",
        INSTALLED_APPS=["bloomguard"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{folder}/db.sqlite3",
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"},
            },
            "postgresql": postgresql(),
        },
        DATABASE_ROUTERS=["tests.database.Router"],
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
                hook = vars(compiler).get(name)
                if hasattr(hook, "__wrapped__"):
                    self._on.append((compiler, name, hook))
                    self._off.append((compiler, name, hook.__wrapped__))
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

        from tests import database

        database.current = alias
        self.alias = alias
        self.connection: Any = connections[alias]
        self._migrate()
        about = {"name": models.CharField(max_length=100), "__module__": __name__}
        self.guarded = {}
        for store in STORES:
            self.guarded[store] = self._table(f"{store}_{alias}", about)
            self._guard(store)
        self.other = self._table(f"Other_{alias}", about)
        self.connection.ensure_connection()
        self.hooks = Hooks(self.connection)

    def _migrate(self) -> None:
        from django.core.management import call_command

        from bloomguard.sync import state

        call_command("migrate", database=self.alias, verbosity=0)
        state.table.forget()  # what it knows is in the other database

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
        about = {"name": f"{store}-{self.alias}".lower(), "store": alias, "capacity": 5_000_000}
        guard = type("BenchGuard", (Guard,), about)(self.guarded[store])
        registry.add(guard)
        Rebuild(guard).run()

    def check(self) -> None:
        """The filters were written to all along, and have what was written with the hooks in place."""
        from bloomguard.guards import Verdict, registry
        from bloomguard.sync import state

        self.hooks.on()
        for store, model in self.guarded.items():
            guard = registry[f"{store}-{self.alias}".lower()]
            assert state.table.current(guard.name).status == state.ARMED
            assert guard.verdict(model.objects.create(name="the last").pk) is Verdict.MAYBE
            assert guard.verdict(-1) is Verdict.ABSENT

    # -- contestants

    def repeat(self, work: Work, *, hooked: bool, times: int = BATCH, within: bool = False) -> Work:
        """``work`` so many times; with ``within`` all in one transaction."""
        from django.db import transaction

        switch = self.hooks.on if hooked else self.hooks.off

        def run() -> None:
            switch()
            with transaction.atomic() if within else nullcontext():
                for _ in range(times):
                    work()

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
            with transaction.atomic():
                create(name="a row")

        return self.both(f"{store}, INSERT", plain) | self.both(f"{store}, INSERT inside atomic", atomic)

    def bulk(self, store: str) -> dict[str, Work]:
        model = self.guarded[store]

        def create() -> None:
            model.objects.bulk_create([model(name="a row") for _ in range(BULK)])

        return self.both(f"{store}, bulk_create", create, times=1)

    def others(self) -> dict[str, Work]:
        """Statements that bring no key of any guard."""
        row, other = self.guarded["file"].objects, self.other.objects
        table = self.other._meta.db_table

        def raw(sql: str) -> Work:
            def run() -> None:
                with self.connection.cursor() as cursor:
                    cursor.execute(sql)

            return run

        return (
            self.both("SELECT by the ORM", lambda: row.get(pk=77), times=4 * BATCH)
            | self.both("other table, INSERT by the ORM", lambda: other.create(name="a row"), within=True)
            | self.both("other table, UPDATE by the ORM", lambda: other.filter(pk=77).update(name="b"), within=True)
            | self.both("raw SELECT", raw("SELECT 1"), times=4 * BATCH)
            | self.both("other table, raw INSERT", raw(f"INSERT INTO {table} (name) VALUES ('x')"), within=True)
        )


def more(taken: Seconds, name: str, times: int) -> float:
    """The microseconds that the hooks add to one statement: the median of the differences."""
    pairs = zip(taken[f"{name}, with"], taken[f"{name}, without"])
    return statistics.median(ours - theirs for ours, theirs in pairs) / times * 1e6


def tell(report: Report, alias: str, taken: Seconds) -> None:
    """One database's rows."""
    vendor = VENDORS[alias]
    atomic = "file, INSERT inside atomic, without"
    report.add(f"{vendor}: INSERT without bloomguard", median(taken, "file, INSERT, without") / BATCH * 1e3, "ms")
    report.add(f"{vendor}: INSERT inside atomic without bloomguard", median(taken, atomic) / BATCH * 1e3, "ms")
    for store in STORES:
        theirs = f"{store}, INSERT inside atomic, without"
        target = None if alias == "default" and store != "file" else 1.10 if store == "file" else 1.40
        of_postgresql = target if alias == "postgresql" else None
        report.add(
            f"{vendor}, {store}: INSERT", ratio(taken, f"{store}, INSERT, with", f"{store}, INSERT, without"),
            against="without bloomguard", at_most=target if alias == "default" else None,
        )  # fmt: skip
        report.add(
            f"{vendor}, {store}: INSERT", ratio(taken, f"{store}, INSERT, with", theirs),
            against="inside atomic, without", at_most=of_postgresql,
        )  # fmt: skip
        report.add(
            f"{vendor}, {store}: INSERT inside atomic", ratio(taken, f"{store}, INSERT inside atomic, with", theirs),
            against="inside atomic, without", at_most=of_postgresql,
        )  # fmt: skip
        report.add(
            f"{vendor}, {store}: bulk_create of {BULK:,}",
            ratio(taken, f"{store}, bulk_create, with", f"{store}, bulk_create, without"),
            against="without bloomguard", at_most=1.10,
        )  # fmt: skip
    report.add(
        f"{vendor}: SELECT by the ORM", ratio(taken, "SELECT by the ORM, with", "SELECT by the ORM, without"),
        against="without bloomguard", at_most=1.01,
    )  # fmt: skip
    for name in ("other table, INSERT by the ORM", "other table, UPDATE by the ORM", "other table, raw INSERT"):
        report.add(f"{vendor}: {name}", more(taken, name, BATCH), "us", against="without bloomguard", at_most=1)
    name = "raw SELECT"
    report.add(f"{vendor}: {name}", more(taken, name, 4 * BATCH), "us", against="without bloomguard", at_most=1)


def main() -> int:
    report = Report("sync", "Statements with bloomguard's hooks and without")
    with tempfile.TemporaryDirectory(prefix="bloomguard-bench-") as folder:
        configure(folder)
        report.start()
        for alias in VENDORS:
            site = Site(alias)
            contestants = site.others()
            bulk: dict[str, Work] = {}
            for store in STORES:
                contestants |= site.inserts(store)
                bulk |= site.bulk(store)
            taken = interleave(contestants, ROUNDS[alias])
            taken |= interleave(bulk, BULK_ROUNDS)
            site.check()
            tell(report, alias, taken)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
