"""Runs programs in two processes and holds what guards say against what is committed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Any

from django.core import serializers
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from bloomguard.exceptions import RebuildError, StoreError
from bloomguard.guards import Guard, spot_checks
from bloomguard.guards.keys import OutOfRange, Unkeyable
from bloomguard.lookups import guarded_lookups
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild, locks, rebuild, roll_back_all, run_all, source, verify
from bloomguard.state import table as states
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.state.row import ARMED
from bloomguard.state.table import StateTable
from bloomguard.state.verdicts import Verdict
from bloomguard.stores import stores
from bloomguard.writes import discards, fencing, updates
from bloomguard.writes.adding import adding
from tests.support.patience import be_patient

from .actor import Hand, Outcome
from .peer import Peer
from .programs import Program, Step, nested
from .rows import NUMBERS, value_of
from .writes import MOVED, moved_table, own_table
from .zoo import GUARDED, Guarded, register_all

#: Every so many steps all rows of both databases are compared.
COMPARED_EVERY = 10


class Incomparable(Exception):
    """From here on the two databases may differ, and neither is wrong."""


class Wrong(Exception):
    """A false 404, or a write that came out otherwise than without bloomguard."""


class Clock:
    """Seconds that pass only when somebody sleeps; whoever is named ``asleep`` is called in the middle of it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.asleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds / 2
        self.asleep()
        self.now += seconds / 2


class Twin:
    """The process without bloomguard."""

    def __init__(self, database: dict[str, Any]) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.twin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**ours, "BLOOMGUARD_FUZZ_TWIN": json.dumps(database)},
        )

    def begin(self, name: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()

    def wait(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the twin has ended")
        return json.loads(line)

    def __call__(self, name: str, *arguments: Any) -> Any:
        self.begin(name, *arguments)
        return self.wait()

    def close(self) -> None:
        self._process.communicate()


class Machine:
    """``run(program)`` performs it from nothing; raises :class:`Wrong`."""

    def __init__(self, database: dict[str, Any], twin: dict[str, Any]) -> None:
        be_patient()
        # Shorter than a database waits for a lock, as in production: the thread that renews may wait for our lock.
        states.RENEWAL_PATIENCE = 1.0
        locks._TRIES = tuple((kind, 0) for kind, _ in locks._TRIES)  # whoever holds one is waiting for us
        spot_checks.drawn = spot_checks.never
        # What a build proves of itself takes most of its time, and here the oracle proves more.
        verify.PublishCheck.verify_rows = rebuild.check_error_rate = lambda *arguments: 0
        self.twin = Twin(twin)
        self.peer = Peer(self._adding)
        self.vendor = connection.vendor
        updates.PIECE = 2  # the tables have few rows
        if self.vendor != "mysql":
            discards.MOST_ROWS = 5
        self.guards = register_all()
        self.clock = Clock()
        self.clock.asleep = self._probe_other
        states.table.clock, states.table.sleep = self.clock, self.clock.sleep
        self.other_table = StateTable(clock=self.clock)
        self.other_table.sleep = self.clock.sleep
        #: The same guards in another process.
        self.others = {name: self._other(guard) for name, guard in self.guards.items()}
        self.builder = Hand()
        self.counts: Counter[str] = Counter()
        self._keys: dict[tuple[Any, ...], bytes | None] = {}
        self._draw = Random(0)
        self._commits = 0
        self._together = False  # then a row may go while we ask
        self._seen = ""
        self.explained: list[str] | None = None
        #: What no step is to do.
        self.without: Sequence[str] = ()
        self._query = self._all_keys()
        self._watch_commits()
        self._watch_discards()

    def _other(self, guard: Guard) -> Guard:
        made = type(guard)(guard.model)
        made._runtime.__dict__["active_filter"] = ActiveFilter(
            guard.name,
            store_alias=guard.store,
            definition=guard._meta.definition,
            width=guard._meta.keys.width,
            counted=guard._meta.discards,
            table=self.other_table,
        )
        return made

    def close(self) -> None:
        self.builder(connections.close_all)
        self.builder.end()
        self.peer.close()
        self.twin.close()
        states.table.forget()
        self.other_table.forget()

    # -- a program

    def run(self, program: Program, explain: bool = False) -> None:
        self._reset(explain)
        program = [step for step in program if step[1] not in self.without]
        for number, step in enumerate(program):
            try:
                self._step(step)
                if number % COMPARED_EVERY == 0:
                    self._compare()
            except Wrong as error:
                raise Wrong(f"step {number}, {step}: {error}") from error
            except Incomparable:
                self.counts["given up"] += 1
                return
        for who in (0, 1):
            self._write(who, "finish", 0)
        self._compare()
        for number in range(8):
            self._check(Random(number))

    def _reset(self, explain: bool) -> None:
        self.explained = [] if explain else None
        self.twin.begin("reset", explain)
        self.peer.reset(explain)
        self.peer.plain.execute("DELETE FROM bloomguard_guardstate")
        store: Any = stores["default"]
        if hasattr(store, "path"):
            shutil.rmtree(store.path, ignore_errors=True)
        stores.reset()
        self.clock.now += 100
        self._commits, self._seen = 0, ""
        for guards in (self.guards, self.others):
            for guard in guards.values():
                guard._runtime.active_filter.forget()
        for table in (states.table, self.other_table):
            table.forget()
        self.open, self.wrote = [False, False], [False, False]
        self.dump: str = "[]"
        self.twin.wait()

    def _step(self, step: Step) -> None:
        who, name, seed = step
        self._draw = draw = Random(seed)
        self.counts["steps"] += 1
        if self.explained is not None:
            self.explained.append(f"--- {step}")
        self.clock.now += draw.choice([0, 0, 0, 0.1, 0.4, 0.7, 1.1])
        self._probe(draw)
        control = getattr(self, f"_do_{name}", None)
        if control is not None:
            control(who, draw)
        else:
            self._write(who, name, seed)
        self._check(draw)

    def _write(self, who: int, name: str, seed: int) -> None:
        other = 1 - who
        if self.open[other] and name not in ("enter", "read", "finish"):
            self._make_room(other, name, seed)
        self.twin.begin("step", who, name, seed)
        mine = self.peer.step(who, name, seed)
        self._same(who, name, mine, self.twin.wait())
        if name == "alter" and self.open[who]:
            self._write(who, "finish", seed)  # nobody can read the table until then

    def _make_room(self, other: int, name: str, seed: int) -> None:
        """SQLite has one writer; and whoever alters a table waits for all others.

        On MariaDB an UPDATE locks more rows with bloomguard than without, until the end of its transaction.
        """
        if name == "alter" or (self.vendor in ("sqlite", "mysql") and self.wrote[other]):
            self._write(other, "finish", seed)

    def _same(self, who: int, name: str, mine: Outcome, twin: Outcome) -> None:
        self._explain(who, name)
        other = self.peer.actors[1 - who]
        if mine != twin and "lock timeout" in mine["result"] and self.peer.hands[1 - who](lambda: other.is_broken):
            raise Incomparable  # docs/limits.md: after an error, the other one's locks last until its ROLLBACK
        first, second = sorted((mine["result"], twin["result"]))
        if first == "'IntegrityError'" and second.endswith("lock timeout'"):
            raise Incomparable  # both refuse it, by the constraint or the lock, whichever they meet first
        if mine != twin and {**mine, "result": mine["result"].replace("StoreError", "IntegrityError")} == twin:
            # Both refuse it. The rows before the error need a fence, in case they are committed; after the error Django
            # refuses the fence too, and its refusal is what the caller gets.
            raise Incomparable
        if mine != twin and "of places" in mine["result"]:
            raise Incomparable  # docs/soft-delete.md: a cuckoo guard of two tables locks the rows of both
        if mine != twin:
            raise Wrong(f"{name} gave {mine} with bloomguard, and {twin} without")
        if "lock timeout" in mine["result"]:
            try:
                self._compare()
            except Wrong:  # under autocommit, an UPDATE of several tables may have changed one of them, or none
                raise Incomparable from None
        self.open[who] = mine["open"]
        self.wrote[who] = self.open[who] and (self.wrote[who] or name not in ("enter", "read"))
        self.counts["failed" if "Error" in mine["result"][:40] else "done"] += 1
        # Who has only begun on SQLite has no snapshot yet, and must not get one from us.
        if self.wrote[who] or (not self.open[who] and self._draw.random() < 0.3):
            self.peer.hands[who](self._look, who, self._draw.choice(GUARDED))

    def _explain(self, who: int, name: str) -> None:
        statements = self.peer.actors[who].statements
        if statements and self.explained is not None:
            self.explained += [f"    {who}: {statement}" for statement in statements if name != "plant"]
            statements.clear()

    def _compare(self) -> None:
        self.twin.begin("rows")
        mine, twin = self.peer.plain.rows(), self.twin.wait()
        for table, rows in mine.items():
            if rows != twin[table]:
                raise Wrong(f"{table} holds {rows} with bloomguard, and {twin[table]} without")

    # -- what is asked

    def _all_keys(self) -> str:
        """One query for the keys of all guards; PostgreSQL and MariaDB want one type a column."""
        parts = []
        for number, one in enumerate(GUARDED):
            text = {"postgresql": "TEXT", "mysql": "CHAR"}.get(self.vendor)
            columns = [f"CAST({column} AS {text})" if text else column for column in one.columns]
            columns += ["NULL"] * (2 - len(columns))
            parts.append(f"SELECT {number}, {', '.join(columns)} FROM {one.rows}")
        return " UNION ALL ".join(parts)

    def _key(self, one: Guarded, values: tuple[Any, ...]) -> bytes | None:
        """The key of what the database holds, as a request would send it; ``None`` if nobody can ask for it."""
        known = one.name, values
        if known not in self._keys:
            texts = [str(value) for value in values]
            try:
                self._keys[known] = self.guards[one.name]._meta.keys.key(texts[0] if len(texts) == 1 else texts)
            except (Unkeyable, OutOfRange):
                self._keys[known] = None
        return self._keys[known]

    def _committed(self) -> Iterator[tuple[Guarded, tuple[Any, ...], bytes]]:
        for number, *columns in self.peer.plain.fetch(self._query):
            one = GUARDED[number]
            values = tuple(columns[: len(one.columns)])
            if None not in values and (key := self._key(one, values)) is not None:
                yield one, values, key

    def _check(self, draw: Random) -> None:
        """No row that is committed is denied, in the one process or the other."""
        if self._seen:
            raise Wrong(self._seen)
        guards = draw.choice([self.guards, self.others])
        for one, values, key in self._committed():
            decision = guards[one.name]._runtime.active_filter.ask(key)
            if decision.verdict is Verdict.ABSENT:
                process = "this" if guards is self.guards else "the other"
                raise Wrong(f"{process} process denies {one.name} {values}: {decision.reason}")
        self.counts["checks"] += 1

    def _watch_discards(self) -> None:
        """Count them."""
        discard = ActiveFilter.discard

        def counted(active: ActiveFilter, keys: Iterable[bytes], name: str) -> None:
            self.counts["discarded"] += 1
            discard(active, keys, name)

        ActiveFilter.discard = counted  # type: ignore[method-assign]

    def _watch_commits(self) -> None:
        """Now and then look between a COMMIT and what follows it, in the process that does not write.

        Not at guards whose fence comes with this very COMMIT: nobody is told of it until all processes know.
        """
        original: Any = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]

        def commit(connection: Any) -> Any:
            result = original(connection)
            self._commits += not self._together
            if not self._together and self._commits % 4 == 0 and threading.current_thread() in self.peer.hands:
                for one, values, key in self._committed():
                    decision = self.others[one.name]._runtime.active_filter.ask(key)
                    if decision.verdict is Verdict.ABSENT and one.name not in fencing._pending_fences("default"):
                        self._seen = f"the other process denies {one.name} {values} just after the COMMIT"
            return result

        BaseDatabaseWrapper._commit = commit  # type: ignore[attr-defined]

    def _probe(self, draw: Random) -> None:
        """Ask for what was never there, so that leases are renewed and negatives answered at times."""
        one = draw.choice(GUARDED)
        for guards in (self.guards, self.others):
            if draw.random() < 0.6:
                self._ask_absent(guards[one.name])

    def _probe_other(self) -> None:
        for one in self._draw.sample(GUARDED, 2):
            self._ask_absent(self.others[one.name])

    def _ask_absent(self, guard: Guard) -> None:
        values = [value_of(self._valued(field), 77) for field in guard._meta.fields]
        decision = guard._runtime.active_filter.ask(guard._meta.keys.key(values[0] if len(values) == 1 else values))
        self.counts["denied" if decision.verdict is Verdict.ABSENT else "passed"] += 1

    @staticmethod
    def _valued(field: Any) -> Any:
        while field.remote_field is not None:
            field = field.target_field
        return field

    def _look(self, who: int, one: Guarded) -> None:
        """In this thread's own transaction no row that it sees is missing from the ORM's lookups."""
        actor, raw = self.peer.actors[who], connection.connection
        if raw is None or actor.is_broken or not (actor.has_begun or connection.get_autocommit()):
            return  # a SELECT would begin a transaction, which the twin does not
        with connection.wrap_database_errors:
            if connection.vendor == "mysql":
                with raw.cursor() as cursor:
                    cursor.execute(f"{one.sql} LIMIT 2")
                    rows = cursor.fetchall()
            else:
                rows = raw.execute(f"{one.sql} LIMIT 2").fetchall()
        guard = self.guards[one.name]
        for values in rows:
            if None in values:
                continue
            wanted = guard._meta.rows().filter(**dict(zip(guard._meta.attnames, map(str, values))))
            with guarded_lookups():
                if not wanted.exists():
                    raise Wrong(f"the ORM finds no {one.name} {values}, which its own transaction sees")
            self.counts["looked up"] += 1

    # -- what else happens

    def _do_lookup(self, who: int, draw: Random) -> None:
        """Requests ask for rows; those that are not there are remembered."""
        one = draw.choice(GUARDED)
        guard = self.guards[one.name]
        values = {
            field.attname: value_of(self._valued(field), draw.randrange(2 * NUMBERS)) for field in guard._meta.fields
        }

        def ask() -> tuple[bool, bool]:
            rows = guard._meta.rows().filter(**values)
            with guarded_lookups():
                found = rows.exists()
            return found, guard._meta.rows().filter(**values).exists()

        if self.open[who] or self.peer.hands[who](lambda: self.peer.actors[who].is_broken):
            return
        if self.vendor != "sqlite" and not self.peer.hands[who](lambda: connection.get_autocommit()):
            return  # it would begin a transaction, which the twin does not
        found, there = self.peer.hands[who](ask)
        if found != there:
            raise Wrong(f"a lookup of {one.name} {values} found {found}, and it is {there}")

    def _do_both(self, who: int, draw: Random) -> None:
        """Both threads write at the same time, each a table of its own: the outcome is that of any order.

        Each commits what it writes: whoever has switched that off would keep SQLite's lock.
        """
        for each in (0, 1):
            self._write(each, "finish", draw.getrandbits(30))
        seeds = [draw.getrandbits(30)]
        while len(seeds) < 2:
            seeds += [seed for seed in [draw.getrandbits(30)] if own_table(seed) is not own_table(seeds[0])]
        self._together = True
        found = self.peer.both(["own", "own"], seeds)
        self._together = False
        for each, mine in enumerate(found):
            self._same(each, "own", mine, self.twin("step", each, "own", seeds[each]))

    def _do_rebuild(self, who: int, draw: Random) -> None:
        """Some guards are rebuilt, by this process or the other, while others write."""
        armed = states.table.renewed("") is not None
        idle = [one for one in GUARDED if not armed or not states.table.current(one.name).active]
        chosen = draw.sample(idle, min(len(idle), draw.choice([3, 6]))) if idle else draw.sample(GUARDED, 1)
        self._build(chosen, draw, writers=draw.random() < 0.7)

    def _do_rebuild_all(self, who: int, draw: Random) -> None:
        self._build(GUARDED, draw, writers=False)

    def _build(self, chosen: Sequence[Guarded], draw: Random, writers: bool) -> None:
        guards = self.guards if draw.random() < 0.5 else self.others
        steps = list(nested(draw, draw.randrange(6) if writers else 0))
        keep = draw.choice([0.0, 3600.0])
        source.PAGE_ROWS = draw.choice([1, 2, 200_000]) if writers else 200_000  # they write between its pages
        scanned: list[Guarded] = []
        turns: SimpleQueue[Any] = SimpleQueue()
        go: SimpleQueue[Any] = SimpleQueue()

        def pause(seconds: float, one: Guarded | None = None) -> None:
            scanned[:] = [one] if one else []
            turns.put(seconds)
            go.get()

        def read(one: Guarded, done: int, total: int) -> None:
            pause(0, one)

        def build() -> Any:
            try:
                made = [
                    Rebuild(guards[one.name], sleep=pause, keep_standby=keep, progress=partial(read, one))
                    for one in chosen
                ]
                return run_all(made, pause)
            finally:
                turns.put(None)

        if self.vendor == "sqlite":
            self._finish_all(draw)
        self.builder.begin(build)
        pauses = 0
        try:
            while (seconds := turns.get()) is not None:
                pauses += 1
                self.clock.sleep(seconds)
                for _ in range(draw.choice([0, 0, 1, 1, 2])):
                    step = self._moving(scanned, draw) if writers else None
                    if step or steps:
                        self._nested(step or steps.pop(0))
                if self.vendor == "sqlite" or pauses >= 4:
                    self._finish_all(draw)
                go.put(None)
        except BaseException:
            while seconds is not None:  # let the builder end
                go.put(None)
                seconds = turns.get()
            self.builder.wait()
            raise
        for outcome in self.builder.wait():
            self.counts["not built" if isinstance(outcome, RebuildError) else "built"] += 1
            if self.explained is not None:
                self.explained.append(f"    {type(outcome).__name__}: {outcome}")

    def _moving(self, scanned: Sequence[Guarded], draw: Random) -> Step | None:
        """A write, at times, that moves rows of the table whose pages are being read just now."""
        if not any(one.model in MOVED for one in scanned) or draw.random() < 0.5:
            return None
        while True:
            seed = draw.getrandbits(30)
            if moved_table(seed) is scanned[0].model:
                self.counts["moved"] += 1
                return int(draw.random() < 0.5), "move", seed

    def _nested(self, step: Step) -> None:
        if self.explained is not None:
            self.explained.append(f"  -- {step}, during the build")
        self._probe(Random(step[2]))
        self._write(*step)
        self._check(Random(step[2]))

    def _finish_all(self, draw: Random) -> None:
        for who in (0, 1):
            if self.open[who]:
                self._write(who, "finish", draw.getrandbits(30))

    def _do_back(self, who: int, draw: Random) -> None:
        """Somebody goes back to the generations that were kept."""
        if self.vendor == "sqlite":
            self._finish_all(draw)
        for outcome in roll_back_all([self.others[one.name] for one in GUARDED], self.clock.sleep):
            self.counts["went back"] += not isinstance(outcome, RebuildError)

    def _do_fence(self, who: int, draw: Random) -> None:
        if self.vendor == "sqlite":
            self._finish_all(draw)
        states.table.fence(draw.choice(GUARDED).name, "somebody said so")

    def _do_restart(self, who: int, draw: Random) -> None:
        """A process begins anew."""
        guards, table = draw.choice([(self.guards, states.table), (self.others, self.other_table)])
        table.forget()
        for guard in guards.values():
            guard._runtime.active_filter.forget()

    def _do_dump(self, who: int, draw: Random) -> None:
        self.dump = serializers.serialize("json", GuardState.objects.all())

    def _do_restore(self, who: int, draw: Random) -> None:
        """State rows of an earlier dump are loaded."""
        self._finish_all(draw)
        for found in serializers.deserialize("json", self.dump):
            if draw.random() < 0.3:
                found.save()
                self.counts["restored"] += 1

    def _do_drop(self, who: int, draw: Random) -> None:
        """What lies in the store goes."""
        name, store = draw.choice(GUARDED).name, stores["default"]
        try:
            for generation in store.names(name):
                store.drop(name, generation)
        except StoreError:
            pass
        self.counts["dropped"] += 1

    @contextmanager
    def _adding(self, model: type[Model]) -> Iterator[Callable[[Any], None]]:
        """The block of one who knows the keys that raw SQL writes."""
        chosen = [self.guards[one.name] for one in GUARDED if one.model._meta.db_table == model._meta.db_table]
        with ExitStack() as stack:
            blocks = [(guard, stack.enter_context(adding(guard, "default"))) for guard in chosen]

            def add(pk: Any) -> None:
                for guard, block in blocks:
                    rows = list(guard._meta.rows().filter(pk=pk).values_list(*guard._meta.attnames))
                    block([row[0] if len(row) == 1 else row for row in rows if None not in row])

            yield add

    def armed(self) -> int:
        """How many guards answer now."""
        return GuardState.objects.filter(status=ARMED).exclude(active="").count()
