"""Guards with options drawn at random, on models drawn at random: no row is denied, no read finds other rows."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connections, models, transaction
from django.db.models import Count, Exists, F, FilteredRelation, OuterRef, Prefetch, Q, QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.test import Client, override_settings
from django.urls import path

from bloomguard.exceptions import RebuildError
from bloomguard.guards import Guard, registry
from bloomguard.lookups import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.lookups.test_differential import shape, undone
from tests.support import database
from tests.support.guarding import urlconf

from .drawn import Site
from .drawn_writes import SAVING, Writes

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
#: Sites of a test, and writes to each.
SHORT, LONG, WRITES = 8, 1_000, 8
LENGTHS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]


# -- reads

#: How a queryset of some rows ends; each is told the site and a condition that holds for the rows with the key.
READS: dict[str, Callable[[Site, Any, Q], Any]] = {
    "list": lambda site, rows, key: list(rows),
    "get": lambda site, rows, key: rows.get(),
    "exists": lambda site, rows, key: rows.exists(),
    "first": lambda site, rows, key: rows.first(),
    "last": lambda site, rows, key: rows.order_by("pk").last(),
    "count": lambda site, rows, key: rows.count(),
    "values": lambda site, rows, key: list(rows.values_list("pk", flat=True)),
    "only": lambda site, rows, key: list(rows.only("pk")),
    "related": lambda site, rows, key: list(rows.select_related()),
    "in_bulk": lambda site, rows, key: rows.in_bulk(),
    "iterator": lambda site, rows, key: list(rows.iterator(chunk_size=1)),
    "contains": lambda site, rows, key: [rows.contains(row) for row in QuerySet(rows.model)[:2]],
    "latest": lambda site, rows, key: rows.latest("pk"),
    "earliest": lambda site, rows, key: rows.earliest("pk"),
    "aggregate": lambda site, rows, key: rows.aggregate(count=Count("pk")),
    "group": lambda site, rows, key: list(rows.order_by().values("pk").annotate(count=Count("links"))),
    "explain": lambda site, rows, key: bool(rows.explain()),
    "union": lambda site, rows, key: list(
        rows.order_by().values_list("pk").union(QuerySet(rows.model).values_list("pk"))
    ),
    "intersection": lambda site, rows, key: list(
        rows.order_by().values_list("pk").intersection(QuerySet(rows.model).order_by().values_list("pk"))
    ),
    "difference": lambda site, rows, key: list(
        QuerySet(rows.model).order_by().values_list("pk").difference(rows.order_by().values_list("pk"))
    ),
    "or": lambda site, rows, key: list(rows | QuerySet(rows.model).filter(pk__isnull=False)),
    "exclude": lambda site, rows, key: list(QuerySet(rows.model).exclude(key)),
    "excluded": lambda site, rows, key: list(rows.exclude(~key)),
    "in": lambda site, rows, key: list(QuerySet(rows.model).filter(pk__in=rows.order_by().values("pk"))),
    "Exists": lambda site, rows, key: list(QuerySet(rows.model).filter(Exists(rows.filter(pk=OuterRef("pk"))))),
    "filtered": lambda site, rows, key: list(
        rows.annotate(found=FilteredRelation("links", condition=Q(links__shown=True))).filter(found__isnull=True)
    ),
    "prefetched": lambda site, rows, key: [
        [row, row.found] for row in rows.prefetch_related(Prefetch("links", QuerySet(site.link), to_attr="found"))
    ],
    "of links": lambda site, rows, key: list(QuerySet(site.link).filter(row__in=rows)),
    "of owners": lambda site, rows, key: [list(owner.rows.filter(key)) for owner in QuerySet(site.owner)],
    "to them": lambda site, rows, key: list(
        QuerySet(site.link).prefetch_related(Prefetch("row", rows.filter(key))).order_by("note")
    ),
    "locked": lambda site, rows, key: _locked(rows),
    "refreshed": lambda site, rows, key: [_refreshed(row, rows) for row in QuerySet(rows.model)[:2]],
    "distinct": lambda site, rows, key: list(rows.distinct()),
    "ordered": lambda site, rows, key: list(rows.order_by(F("pk").desc())),
    "sliced": lambda site, rows, key: list(rows.order_by("pk")[:2]),
    "reversed": lambda site, rows, key: rows.reverse().first(),
    "asynchronous": lambda site, rows, key: async_to_sync(rows.aget)(),
    "annotated": lambda site, rows, key: list(rows.annotate(again=F("pk")).filter(again__isnull=False).values("again")),
    "moved": lambda site, rows, key: list(rows.values("flag").order_by("flag").filter(flag=F("flag"))),
    "dates": lambda site, rows, key: [
        list(rows.dates(field.name, "month")) for field in rows.model._meta.fields if type(field) is models.DateField
    ],
}


@pytest.fixture
def quiet() -> Iterator[None]:
    """Fences and 404s are part of the game."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _locked(rows: Any) -> Any:
    with transaction.atomic(using=database.current):
        return list(rows.select_for_update())


def _refreshed(row: Any, rows: Any) -> Any:
    row.refresh_from_db(from_queryset=rows.filter(pk=row.pk))
    return row


def outcome(ask: Callable[[], Any]) -> Any:
    """What it returns, or the name of its error."""
    try:
        with ExitStack() as stack:
            if connections[database.current].in_atomic_block:
                stack.enter_context(transaction.atomic(using=database.current))
            found = ask()
            return sorted(map(repr, map(shape, found))) if isinstance(found, list) else repr(shape(found))
    except Exception as error:
        return type(error).__name__


# -- the run


class Run:
    """One site: rows are written and read, with guards and without."""

    def __init__(self, seed: int, clock: Any) -> None:
        self.seed, self.clock = seed, clock
        self.draw = random.Random(seed + 0.5)
        self.site = Site(seed)
        self.steps: list[str] = []
        self.odd: list[str] = []
        self.built = self.answered = 0
        self.statements, self.is_guarded = [0, 0], False
        #: Guards that follow signals and have missed a write.
        self.missed: set[str] = set()

    def perform(self) -> None:
        with self.site.installed(), ExitStack() as stack:
            for number in range(5):
                self.site.owner(id=number, slug=f"o{number}").save()
            urls = urlconf(*(self.pattern(guard) for guard in self.site.made))
            stack.enter_context(override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]))
            self.plain, self.guarded = Client(raise_request_exception=False), Client(raise_request_exception=False)
            self.plain.handler.load_middleware()
            stack.enter_context(override_settings(MIDDLEWARE=[GUARD]))
            for _ in range(10):
                self.write()
            self.rebuild()
            self.check()
            for _ in range(WRITES):
                self.step()
                if self.odd:
                    return
                if self.draw.random() < 0.25:
                    self.rebuild()

    def pattern(self, guard: Guard) -> Any:
        names = [field.name for field in guard._meta.fields]

        def view(request: Any, **captured: Any) -> HttpResponse:
            try:
                return HttpResponse(get_object_or_404(QuerySet(guard.model).filter(guard.alive), **captured).pk)
            except (ValueError, ValidationError):
                raise Http404 from None
            except guard.model.MultipleObjectsReturned:
                return HttpResponse("several")

        guard.routes = {guard.name: {name: f"{name}" for name in names}}
        return path("/".join([guard.name, *(f"<str:{name}>" for name in names), ""]), view, name=guard.name)

    def rebuild(self) -> None:
        for guard in self.site.made:
            try:
                Rebuild(guard, sleep=self.clock.sleep, probes=1_000).run()
                self.built += 1
                self.missed.discard(guard.name)
            except RebuildError as error:
                self.steps.append(f"refused: {error}")
        self.steps.append("rebuilt")

    # -- one write

    def step(self) -> None:
        """A write, and what is read after it, in some kind of transaction."""
        way = self.draw.choice(["autocommit", "autocommit", "atomic", "rolled back", "savepoint"])
        using = database.current
        self.steps.append(f"{way}:")
        if way == "autocommit":
            self.write()
        elif way == "savepoint":
            with self.committed():
                self.write()
                with undone(using):
                    self.write()
                    self.check(inside=True)
                self.check(inside=True)
        else:
            with self.committed() if way == "atomic" else undone(using):
                self.write()
                self.write()
                self.check(inside=True)
        if self.draw.random() < 0.3:
            self.clock.sleep(self.draw.random() * 3)
        self.check()

    @contextmanager
    def committed(self) -> Iterator[None]:
        """A transaction; the COMMIT may be refused, because of what a row points to."""
        try:
            with transaction.atomic(using=database.current):
                yield
        except DatabaseError as error:
            self.steps.append(f"COMMIT: {error}")

    def write(self) -> None:
        seed, using = self.draw.random(), database.current
        writes, came = Writes(self.site, seed), ""
        is_whole = self.draw.random() < 0.5 or connections[using].in_atomic_block
        try:
            with transaction.atomic(using=using) if is_whole else ExitStack():
                writes.perform()
        except Exception as error:
            came = f": {type(error).__name__}: {str(error)[:150]}"
            if is_whole and not self.fails_without(seed):
                self.odd.append(f"only with guards, {writes.way} of {writes.model.__name__}{came}")
        self.steps.append(f"{writes.way} of {writes.model.__name__}{came}")
        if writes.way not in SAVING:
            self.missed |= {guard.name for guard in self.site.made if guard.sync == "signals"}

    def fails_without(self, seed: float) -> bool:
        """Whether the write fails without guards too."""
        for guard in self.site.made:
            registry.remove(guard)
        try:
            with undone(database.current):
                Writes(self.site, seed).perform()
                connections[database.current].check_constraints()
        except Exception:
            return True
        finally:
            for guard in self.site.made:
                registry.add(guard)
        return False

    # -- what is read

    def check(self, inside: bool = False) -> None:
        for guard in self.site.made:
            names = [field.attname for field in guard._meta.fields]
            rows = QuerySet(guard.model).order_by()
            alive = set(rows.filter(guard.alive).values_list(*names))
            if guard.name not in self.missed:
                self.deny_none(guard, alive)
            others = set(rows.values_list(*names)) - alive
            found = [*sorted(alive, key=repr)[:40], *sorted(others, key=repr)[:40]]
            for values in [*self.draw.sample(found, min(2, len(found))), self.invented(guard)]:
                self.read(guard, values)
                if not inside and guard.name not in self.missed and self.draw.random() < 0.3:
                    self.visit(guard, values)

    def deny_none(self, guard: Guard, alive: set[Any]) -> None:
        for values in alive:
            spellings = [values, tuple(map(str, values))]
            if guard._meta.normalizes:
                spellings.append(tuple(value.swapcase() if isinstance(value, str) else value for value in values))
            for spelled in spellings:
                value = spelled[0] if len(spelled) == 1 else spelled
                if None not in values and guard.verdict(value) is Verdict.ABSENT:
                    self.odd.append(f"{guard.name} denies {value!r}")

    def invented(self, guard: Guard) -> tuple[Any, ...]:
        """A key, of which there may be a row."""
        made = []
        for field in guard._meta.fields:
            while field.remote_field is not None:
                field = field.target_field
            number = self.draw.randrange(-1, 12)
            if field.name in self.site.kinds:
                made.append(self.site.value(field.name, self.draw))
            else:
                made.append(f"o{number}" if field.name == "slug" else number)
        return tuple(made)

    def read(self, guard: Guard, values: tuple[Any, ...]) -> None:
        site, concrete = self.site, guard.model._meta.concrete_model
        model = self.draw.choice([each for each in site.models if issubclass(each._meta.concrete_model, concrete)])
        key = Q()
        for field, value in zip(guard._meta.fields, values, strict=True):
            names = [field.name, field.attname, f"{field.attname}__exact"]
            key &= Q((self.draw.choice([*names, "pk"] if field is model._meta.pk else names), value))
        managers = [QuerySet(model), *(manager.get_queryset() for manager in model._meta.managers)]
        rows, more = self.draw.choice(managers), site.condition(model, 1)
        rows = self.draw.choice([
            *[lambda: rows.filter(guard.alive, key)] * 4, lambda: rows.filter(guard.alive).filter(key),
            lambda: rows.filter(key), lambda: rows.filter(key & guard.alive), lambda: rows.filter(~guard.alive, key),
            lambda: rows.filter(more, key, guard.alive), lambda: rows.filter(more).filter(guard.alive, key),
            lambda: rows.filter(guard.alive, key).exclude(more), lambda: rows.filter(key | guard.alive),
        ])()  # fmt: skip
        name = self.draw.choice(["list", "get", "first", "exists", "list", *READS])
        with connections[database.current].execute_wrapper(self.count):
            self.is_guarded = False
            expected = outcome(lambda: READS[name](site, rows.all(), key))
            self.is_guarded = True
            with guarded_lookups():
                answered = outcome(lambda: READS[name](site, rows.all(), key))
        self.answered += self.statements[1] < self.statements[0]
        self.statements = [0, 0]
        if answered != expected:
            self.odd.append(f"{name} of {rows.query}\n  without: {expected}\n  with: {answered}")

    def count(self, execute: Any, *arguments: Any) -> Any:
        self.statements[self.is_guarded] += 1
        return execute(*arguments)

    def visit(self, guard: Guard, values: tuple[Any, ...]) -> None:
        url = f"/{guard.name}/" + "".join(f"{quote(str(value), safe='')}/" for value in values)
        method = self.draw.choice(["get", "get", "head", "post"])
        answers = [getattr(client, method)(url) for client in (self.plain, self.guarded)]
        one, other = [(answer.status_code, answer.content) for answer in answers]
        if one != other:
            self.odd.append(f"{method} {url}: {one} became {other}")

    def __str__(self) -> str:
        return "\n  ".join([f"seed {self.seed}", *self.odd[:3], str(self.site), *self.steps])


@pytest.mark.parametrize("sites", LENGTHS)
def test_no_row_is_denied_whatever_the_options(each_database, fresh, hasty, clock, quiet, sites):
    """Whatever ``alive``, ``lookup``, ``filter`` and the other options are, and however rows are written and read.

    ``BLOOMGUARD_SEED`` names the first seed.
    """
    first = int(os.environ.get("BLOOMGUARD_SEED") or 1_000_000 * database.ALL.index(each_database))
    odd, answered = list[str](), 0
    for seed in range(first, first + sites):
        run = Run(seed, clock)
        run.perform()
        if run.odd:
            odd.append(str(run))
            print(odd[-1])
        answered += run.answered
        if len(odd) > 4:
            break
    assert not odd, "\n\n".join(odd)
    assert answered > sites * 3
