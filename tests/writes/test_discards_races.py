"""Discards by token lose no row, however writers and builders race; whatever is simpler does."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.models import Q

from bloomguard.guards import Guard
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.verify import Verification
from bloomguard.state.verdicts import Verdict
from tests.conftest import forget
from tests.shop.models import Article
from tests.support import database
from tests.support.guarding import registered
from tests.support.servers import until
from tests.support.tokens import NAIVE, World


@pytest.fixture
def world(settings: Any, clock: Any) -> Any:
    """``world(mode)``: a model of writers and a builder around a filter in memory."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}
    forget()
    yield lambda mode, seed=1: World(mode, seed, clock)
    forget()


def test_no_row_is_lost(world):
    """Deleters that race, rows that come back, rollbacks, rebuilds, full counters: every row that is there passes."""
    made = world("tokens")

    assert made.run(3_000) == 0
    assert min(made.saturated, made.builds - made.schedules) >= 20
    assert made.discarded > 200


@pytest.mark.parametrize("mode", NAIVE)
def test_what_is_simpler_loses_rows(world, mode):
    """The model notices each of the ways that others discard in."""
    assert world(mode).run(15_000, patient=False) > 0


@pytest.mark.slow
def test_no_row_is_lost_in_a_million_writes(world):
    """The same in full length."""
    began, seed = time.monotonic(), random.randrange(2**32)
    made = world("tokens", seed)

    assert made.run(1_000_000) == 0, f"seed {seed}"
    print(
        f"\n{made.operations:,} writes in {made.schedules:,} schedules, {made.discarded:,} discards, "
        f"{made.saturated:,} of full counters, {made.builds:,} builds: no row denied; "
        f"{time.monotonic() - began:.0f} s"
    )


# -- the same through the ORM, on PostgreSQL

BLOCKED = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))"

LETTERS, ARTICLES_A_LETTER = "abcd", 12


@pytest.fixture
def articles(monkeypatch: pytest.MonkeyPatch, fresh: None) -> Any:
    """A guard whose keys are the first letters of slugs: many rows of one key. Those with 0 are never touched."""
    monkeypatch.setattr(database, "current", "postgresql")
    Article.objects.bulk_create(Article(slug=f"{letter}0") for letter in LETTERS)
    first_letter = lambda self, value: value[:1]  # noqa: E731
    with registered(
        Article, name="raced", lookup="slug", filter="cuckoo", alive=Q(deleted=False), normalize=first_letter
    ) as guard:
        Rebuild(guard, sleep=lambda seconds: None).run()  # nobody writes yet
        yield guard


def write(draw: random.Random) -> bool:
    """One of the ways in which a row comes or goes, by whoever is faster, and sometimes undone; whether it was done."""
    slug = f"{draw.choice(LETTERS)}{draw.randint(1, ARTICLES_A_LETTER)}"
    rows = Article.objects.filter(slug=slug)
    try:
        with transaction.atomic(using="postgresql"):
            match draw.randrange(7):
                case 0:
                    rows.delete()
                case 1 | 2:
                    for row in rows:
                        row.delete()
                case 3:
                    rows.update(deleted=draw.random() < 0.5)
                case 4:
                    for row in rows:
                        row.deleted = not row.deleted
                        row.save()
                case _:
                    Article.objects.bulk_create(
                        [Article(slug=slug)], update_conflicts=True, unique_fields=["slug"], update_fields=["deleted"]
                    )
            if draw.random() < 0.1:
                transaction.set_rollback(True, using="postgresql")
        return True
    except DatabaseError:  # a deadlock, or somebody else's row of this slug
        return False


def race(guard: Guard, writes: int, threads: int = 4) -> None:
    """So many writes by each of some threads; after each, every letter has to be let through."""
    faults: list[object] = []
    done: list[bool] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(writes):
                done.append(write(draw))
                faults.extend(letter for letter in LETTERS if guard.verdict(f"{letter}0") is Verdict.ABSENT)
        except Exception as error:
            faults.append(error)
        finally:
            connections.close_all()

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

    assert faults == []
    assert sum(done) > len(done) / 2


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_racing_threads_lose_no_row(articles):
    """Four threads delete, soft-delete, restore and upsert the same rows: who is there passes at any time."""
    race(articles, 60)

    assert Verification(articles).run().missing == 0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_racing_threads_lose_no_row_while_it_is_rebuilt(articles):
    """The same for longer, with one rebuild after the other."""
    over = threading.Event()
    builds = []

    def build() -> None:
        while not over.is_set():
            builds.append(Rebuild(articles).run())
        connections.close_all()

    builder = threading.Thread(target=build)
    builder.start()
    try:
        race(articles, 5_000)
    finally:
        over.set()
        builder.join()

    assert len(builds) > 3
    assert Verification(articles).run().missing == 0


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_delete_holds_no_lock_while_it_waits_for_one(articles):
    """Who has inserted a row that refers to it, and changes it then, would else wait for the DELETE, and it for him."""

    def delete():
        Article.objects.filter(slug="a0").delete()
        connections.close_all()

    def is_blocked():
        cursor.execute(BLOCKED)
        return cursor.fetchone()[0]

    deleter = threading.Thread(target=delete)
    with transaction.atomic(using="postgresql"), connections["postgresql"].cursor() as cursor:
        # The lock of a foreign key that is checked at once.
        cursor.execute("SELECT FROM shop_article WHERE slug = 'a0' FOR KEY SHARE")
        deleter.start()
        until(is_blocked)
        cursor.execute("SET LOCAL lock_timeout = 100")

        assert Article.objects.filter(slug="a0").update(slug="a0") == 1
    deleter.join()

    assert not Article.objects.filter(slug="a0").exists()
