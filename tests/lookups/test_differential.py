"""Querysets drawn at random give the same with guards at their lookups and without: no row goes missing."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError, connections, transaction
from django.db.models import Model, QuerySet

from bloomguard.guards import Guard, counters
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import Rebuild, run_all
from bloomguard.state import table as state
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import ABSENT, REMEMBERED, Decision
from bloomguard.writes.adding import adding
from tests.support import database

from .guarded import register_all, rows_with
from .models import Author, Tag
from .querysets import NUMBERS, Draw, evaluate, writes
from .writes import PLAIN, Writes

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SHORT, LONG = 1_000, 100_000
LENGTHS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]


# -- what a queryset gives, as something that can be compared


def shape(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A value without identities, all that a row has loaded included; asks the database nothing."""
    if isinstance(value, Model):
        if id(value) in seen:
            return "..."
        seen = (*seen, id(value))
        held = {name: shape(each, seen) for name, each in vars(value).items() if name != "_state"}
        related = {name: shape(each, seen) for name, each in value._state.fields_cache.items()}
        return type(value).__name__, value._state.db, held, related
    if isinstance(value, QuerySet):
        return [shape(each, seen) for each in value._result_cache or ()]
    if isinstance(value, dict):
        return {name: shape(each, seen) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shape(each, seen) for each in value]
    return type(value).__name__, value


def outcome(found: Any, expression: str) -> Any:
    """What the expression has given, its rows in their order if it has one."""
    if "'?'" in expression:
        return type(found).__name__, len(found) if isinstance(found, (list, dict)) else None
    if isinstance(found, list) and ".order_by(" not in expression:
        return sorted(map(repr, map(shape, found)))
    return shape(found)


# -- one evaluation


@dataclass
class Evaluated:
    """What came of one evaluation: the SELECTs that were sent, and the keys that a guard called absent.

    ``refused`` says that the database, or its driver, refused the statement when it was sent.
    """

    outcome: Any = None
    refused: bool = False
    statements: list[str] = field(default_factory=list)
    absent: list[tuple[Guard, Any]] = field(default_factory=list)


class Undo(Exception):
    """Leaves a transaction that is to be rolled back."""


@contextmanager
def undone(using: str) -> Iterator[None]:
    """A transaction, or a savepoint, that leaves no trace."""
    try:
        with transaction.atomic(using=using):
            yield
            raise Undo
    except Undo:
        pass


def evaluated(expression: str, guarded: bool) -> Evaluated:
    """Evaluate in the present state, and leave it as it is."""
    result = Evaluated()

    def note(execute: Any, sql: Any, *rest: Any) -> Any:
        if str(sql).lstrip("(").startswith("SELECT"):
            result.statements.append(str(sql))
        return execute(sql, *rest)

    def hear(guard: Guard, value: Any, decision: Decision) -> None:
        if decision in (ABSENT, REMEMBERED):
            result.absent.append((guard, value))

    with ExitStack() as stack:
        for alias in connections:
            if writes(expression) or connections[alias].in_atomic_block:
                stack.enter_context(undone(alias))
            stack.enter_context(connections[alias].execute_wrapper(note))
        if guarded:
            counters.listeners.append(hear)
            stack.callback(counters.listeners.remove, hear)
            stack.enter_context(guarded_lookups())
        try:
            result.outcome = outcome(evaluate(expression), expression)
        except Exception as error:
            # What PostgreSQL quotes of the statement has the name of its cursor, which Django numbers.
            result.outcome = "raised", type(error).__qualname__, str(error).partition("\nLINE ")[0]
            result.refused = any(frame.name == "_execute" for frame in extract_tb(error.__traceback__))
    return result


# -- the run


class Scene(NamedTuple):
    """What a queryset is evaluated in. ``model`` and ``number`` are of a row that raw SQL has just written."""

    what: str
    model: type[Model] | None = None
    number: int = -1


class Run:
    """Draws states and querysets, evaluates each queryset twice, and compares."""

    def __init__(self, seed: int, guards: dict[str, Guard], rearm: Callable[[], None], clock: Any) -> None:
        self.random = random.Random(seed)
        self.guards = guards
        self.rearm = rearm
        self.clock = clock
        self.writes = Writes(self.random)
        self.answered = self.refused = 0
        self.compared = 0
        self.differences: list[str] = []

    def step(self) -> None:
        """Change the state now and then, and compare some querysets in it."""
        if self.random.random() < 0.3:
            self.writes()
        if self.random.random() < 0.05:
            self.clock.sleep(self.random.random() * 3)  # leases are renewed
        scenes = [self.autocommit, self.atomic, self.savepoint, self.raw, self.adding]
        with self.random.choices(scenes, [700, 180, 100, 4, 8])[0]() as scene:
            for _ in range(10 if scene.model else 1):
                numbers = [scene.number] if scene.model else self.writes.recent
                self.compare(Draw(self.random, numbers, scene.model).expression(), scene)

    def compare(self, expression: str, scene: Scene) -> None:
        """Evaluate without and with the hook, in either order."""
        self.compared += 1
        order = self.random.choice([(False, True), (True, False)])
        results = {guarded: evaluated(expression, guarded) for guarded in order}
        without, with_hook = results[False], results[True]
        if without.outcome != with_hook.outcome and not self.is_refused(without, with_hook):
            self.report(
                f"{scene.what}: {expression}\n  without: {without.outcome}\n  with: {with_hook.outcome}"
                f"\n  absent: {with_hook.absent}"
            )
        if len(with_hook.statements) < len(without.statements):
            self.answered += 1
            if not writes(expression):
                self.ask_database(expression, scene, with_hook.absent)

    def report(self, difference: str) -> None:
        """Note a difference, and where in the run it is."""
        self.differences.append(f"queryset {self.compared}, {difference}")

    def is_refused(self, without: Evaluated, with_hook: Evaluated) -> bool:
        """Whether the statement is wrong, which nobody learns who does not send it: that is no difference.

        A key that no column holds is none of these.
        """
        keys = [value for _, value in with_hook.absent]
        refused = without.refused and bool(keys)
        self.refused += refused
        return refused and not any(type(key) is int and abs(key) >> 63 for key in keys)

    def ask_database(self, expression: str, scene: Scene, absent: list[tuple[Guard, Any]]) -> None:
        """No row has a key that a guard has called absent, and there was one."""
        found = [(guard, value) for guard, value in absent if rows_with(guard, value, database.current)]
        if found or not absent:
            self.report(f"{scene.what}: {expression}\n  there are rows of {found or 'no key that was asked for'}")

    # -- states to evaluate in

    @contextmanager
    def autocommit(self) -> Iterator[Scene]:
        """Nothing is open."""
        yield Scene("autocommit")

    @contextmanager
    def atomic(self) -> Iterator[Scene]:
        """A transaction that has written, and is committed or rolled back."""
        using = database.current
        outer = suppress(IntegrityError) if self.random.random() < 0.5 else undone(using)  # a key that was pointed at
        with outer, transaction.atomic(using=using):
            for _ in range(self.random.randrange(3)):
                self.writes()
            yield Scene("atomic")

    @contextmanager
    def savepoint(self) -> Iterator[Scene]:
        """A transaction in which a savepoint's writes were rolled back."""
        with suppress(IntegrityError), transaction.atomic(using=database.current):
            if self.random.random() < 0.5:
                self.writes()
            with undone(database.current):
                self.writes()
                self.writes()
            yield Scene("savepoint rolled back")

    @contextmanager
    def raw(self) -> Iterator[Scene]:
        """A transaction that has just inserted by raw SQL, and is rolled back."""
        with undone(database.current):
            model, number = self.random.choice(PLAIN), self.random.randrange(NUMBERS)
            self.writes.raw_insert(model, number)
            yield Scene("raw SQL", model, number)
        self.rearm()

    @contextmanager
    def adding(self) -> Iterator[Scene]:
        """A block of `adding` whose row is inserted, and whose key is not added yet."""
        name, model = self.random.choice([("lookups-author-pk-bloom", Author), ("lookups-tag-pk-bitmap", Tag)])
        number = self.random.randrange(NUMBERS)
        with undone(database.current), adding(self.guards[name], database.current) as add:
            self.writes.raw_insert(model, number)
            yield Scene("adding", model, number)
            add([number])
        self.rearm()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Fences and errors are part of the game."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def guards(each_database, build, clock, quiet) -> Iterator[dict[str, Guard]]:
    """All guards, registered and not yet built."""
    with ExitStack() as stack:
        yield register_all(stack)


@pytest.mark.timeout(7200)
@pytest.mark.no_cover  # it takes twice as long; each rule has a test of its own
@pytest.mark.parametrize("count", LENGTHS)
def test_querysets_give_the_same_rows(guards, clock, count):
    """Rows, their order, exceptions and truth are the same; what was answered without SQL has no row."""
    drawn = random.randrange(2**32) if count > SHORT else 0  # the long run looks for what is new
    seed = int(os.environ.get("BLOOMGUARD_SEED") or drawn)
    print(f"BLOOMGUARD_SEED={seed}")

    def rearm(everything: bool = False) -> None:
        rows = {name: state.table.current(name) for name in guards}
        due = [guards[name] for name, row in rows.items() if everything or row.status != ARMED or not row.active]
        for built in run_all([Rebuild(guard, sleep=clock.sleep) for guard in due], clock.sleep):
            assert not isinstance(built, Exception), built

    run = Run(seed, guards, rearm, clock)
    run.writes.seed()
    rearm()
    while run.compared < count and len(run.differences) < 10:
        run.step()
        if run.compared % 500 == 0:
            rearm(everything=run.compared % 5_000 == 0)  # a filter keeps the keys of deleted rows, and answers less

    different = "\n".join(run.differences)
    assert not different, f"BLOOMGUARD_SEED={seed}\n{different}"
    assert run.answered > count / 20
    assert run.refused < count / 100
