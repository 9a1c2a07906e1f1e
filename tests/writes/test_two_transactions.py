"""Random transactions, two at a time, step by step: each row that is there in the end is let through."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.models import Case, F, Q, Value, When

from bloomguard.guards import Guard
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article
from tests.support import database
from tests.support.database import conflicting
from tests.support.guarding import registered

from .test_joined import Essay, Paper, is_blocked, tables  # noqa: F401

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    # SQLite lets one write at a time.
    pytest.mark.parametrize("each_database", ["postgresql", "mariadb"], indirect=True),
]

KEYS, TEXTS = range(1, 4), "abc"
#: Of each guard: its model and its options.
GUARDS: list[tuple[Any, dict[str, Any]]] = [
    (Essay, {"lookup": "slug"}),
    (Essay, {"lookup": "country"}),
    (Essay, {"lookup": ("country", "slug"), "alive": Q(published=True)}),
    (Essay, {"lookup": "slug", "filter": "cuckoo", "alive": Q(published=True)}),
    (Essay, {"lookup": "country", "filter": "cuckoo", "alive": Q(note="")}),
    (Essay, {"lookup": ("country", "slug"), "filter": "cuckoo"}),
    (Essay, {"filter": "cuckoo", "alive": Q(published=True, note="")}),
    (Article, {"lookup": "slug", "filter": "cuckoo", "alive": Q(deleted=False)}),
    (Article, {"lookup": "slug"}),
]


class Given(NamedTuple):
    """What a step does something with. ``new``: no row has had this value, so no filter has it yet."""

    pk: int
    other: int
    text: str
    new: str
    flag: bool

    @property
    def essays(self) -> Any:
        return Essay.objects.filter(pk=self.pk)

    @property
    def papers(self) -> Any:
        return Paper.objects.filter(pk=self.pk)

    @property
    def articles(self) -> Any:
        return Article.objects.filter(slug=self.text)

    def exchange(self) -> None:
        new = Case(When(pk=self.pk, then=Value(self.new)), default=F("slug"))
        Essay.objects.filter(pk__in=[self.pk, self.other]).update(slug=new)

    def save(self) -> None:
        Essay(pk=self.pk, slug=self.new, country=self.new, published=self.flag).save()

    def save_columns(self, **values: Any) -> None:
        for row in self.essays:
            for name, value in values.items():
                setattr(row, name, value)
            row.save(update_fields=list(values))

    def add_child(self) -> None:
        for paper in self.papers:
            Essay(paper_ptr=paper, slug=self.new).save_base(raw=True, using=database.current)

    def upsert(self) -> None:
        Article.objects.bulk_create(
            [Article(slug=self.text, deleted=self.flag)],
            update_conflicts=True,
            unique_fields=conflicting("slug"),
            update_fields=["deleted"],
        )


STEPS: list[Callable[[Given], object]] = [
    lambda given: given.essays.update(slug=given.new),
    lambda given: given.essays.update(note="" if given.flag else given.new),
    lambda given: given.essays.update(slug=given.new, country=given.new, published=given.flag),
    lambda given: given.papers.update(country=given.new),
    lambda given: given.papers.update(published=given.flag),
    lambda given: given.papers.update(country=given.new, published=True),
    lambda given: given.exchange(),
    lambda given: given.save(),
    lambda given: given.save_columns(slug=given.new),
    lambda given: given.save_columns(country=given.new, published=True),
    lambda given: given.add_child(),
    lambda given: given.essays.delete(),
    lambda given: [each.delete(keep_parents=True) for each in given.essays],
    lambda given: given.upsert(),
    lambda given: Article.objects.bulk_create([Article(slug=given.text)], ignore_conflicts=True),
    lambda given: given.articles.update(deleted=given.flag),
    lambda given: given.articles.delete(),
    lambda given: Article.objects.filter(pk=given.pk).update(slug=given.new),
]


def steps(draw: random.Random) -> list[Callable[[], object]]:
    """What one transaction does."""
    return [partial(draw.choice(STEPS), _given(draw)) for _ in range(draw.randint(1, 3))]


def _given(draw: random.Random) -> Given:
    new = f"new-{draw.randrange(2**40)}"
    return Given(draw.choice(KEYS), draw.choice(KEYS), draw.choice(TEXTS), new, draw.random() < 0.5)


class Transaction:
    """A transaction in a thread of its own, one step at a time. ``failed``: the database has refused a step."""

    def __init__(self, draw: random.Random, level: str) -> None:
        self._steps = steps(draw)
        self._is_undone = draw.random() < 0.15
        self._level = f"SET TRANSACTION ISOLATION LEVEL {level}" if level else ""
        self._thread = ThreadPoolExecutor(1)
        self._block = ExitStack()
        self._left: list[Callable[[], object]] = [self._begin, *self._steps, self._end]
        self._running: Future[object] | None = None
        self.failed = False

    def _begin(self) -> None:
        with connections[database.current].cursor() as cursor:
            if self._level and cursor.db.vendor == "mysql":  # of the next transaction
                cursor.execute(self._level)
            self._block.enter_context(transaction.atomic(using=database.current))
            if self._level and cursor.db.vendor == "postgresql":
                cursor.execute(self._level)

    def _end(self) -> None:
        if self._is_undone:
            transaction.set_rollback(True, using=database.current)
        self._block.close()

    def _do(self, step: Callable[[], object]) -> None:
        try:
            step()
        except DatabaseError:  # a deadlock, a unique value, or a foreign key
            self.failed, self._left = True, []
            if connections[database.current].in_atomic_block:
                transaction.set_rollback(True, using=database.current)
                self._block.close()

    @property
    def is_over(self) -> bool:
        return not self._left and not self.is_busy

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def advance(self) -> None:
        """Begin the next step, and return once it is done, or waits for the other transaction."""
        if not self.is_busy and self._left:
            self._running = self._thread.submit(self._do, self._left.pop(0))
        while self.is_busy and not is_blocked():
            time.sleep(0.001)

    def finish(self) -> None:
        while not self.is_over:
            self.advance()
            time.sleep(0.001)
        assert self._running is None or self._running.exception() is None, self._running.exception()
        self._thread.submit(connections.close_all).result()
        self._thread.shutdown()


@pytest.fixture
def guards(tables: None, clock: Any) -> Iterator[list[Guard]]:  # noqa: F811
    with ExitStack() as open_ones:
        yield [
            open_ones.enter_context(registered(model, name=f"two-{number}", **options))
            for number, (model, options) in enumerate(GUARDS)
        ]


def run(guards: list[Guard], clock: Any, schedules: int, seed: int, level: str = "") -> Counter[str]:
    """Run so many pairs of transactions; what was seen."""
    seen: Counter[str] = Counter()
    for number in range(schedules):
        draw = random.Random(f"{seed}/{number}")
        for guard in guards:
            if state.table.current(guard.name).status != ARMED or not state.table.current(guard.name).active:
                Rebuild(guard, sleep=clock.sleep, probes=1_000).run()
                seen["built"] += 1
        pair = [Transaction(draw, level), Transaction(draw, level)]
        while not all(each.is_over for each in pair):
            free = [each for each in pair if not each.is_over and not each.is_busy]
            draw.choice(free or pair).advance()
        for each in pair:
            each.finish()
            seen["failed"] += each.failed
        for guard in guards:
            for row in guard._meta.rows().using(database.current).values_list(*guard._meta.attnames):
                verdict = guard.verdict(row if len(row) > 1 else row[0])
                seen[verdict.name] += 1
                assert verdict is not Verdict.ABSENT, f"{guard.lookup} {guard.filter} {row}: schedule {seed}/{number}"
    return seen


def test_no_pair_of_transactions_loses_a_key(guards, clock):
    """Whatever the two do to the same rows, and in whatever order."""
    seen = run(guards, clock, 60, seed=1)

    assert seen["MAYBE"] > seen["UNKNOWN"]
    assert seen["failed"] < 60


def test_nor_does_one_that_reads_an_older_snapshot(guards, clock):
    """Where a statement may not see what has been committed, more guards are fenced, but no key is lost."""
    seen = run(guards, clock, 20, seed=2, level="REPEATABLE READ")

    assert seen["MAYBE"] > 0
    assert seen["UNKNOWN"] > 0


@pytest.mark.slow
def test_no_pair_of_many_loses_a_key(guards, clock):
    """The same for longer."""
    seed = random.randrange(2**32)
    print(f"seed {seed}: {run(guards, clock, 3_000, seed)}")
