"""A test runner that gives each model of the tests guards, and arms them in every test.

Three things are compared: the tests' own assertions; each query that a guard answers, with what the database would have
returned; after each test, the rows that are there with the keys in the filters.
"""

from __future__ import annotations

import json
import os
import unittest
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connections, models, transaction
from django.db.models.sql.constants import SINGLE
from django.test import TransactionTestCase
from django.test.runner import DiscoverRunner

from bloomguard import Guard, guarded_lookups, register, registry
from bloomguard.exceptions import RebuildError
from bloomguard.lookups import select
from bloomguard.lookups.context import contexts
from bloomguard.rebuild.sources import Sources
from bloomguard.state.verdicts import Verdict
from bloomguard.testing import _keys, guards_armed

#: Their models have armed guards in every test, as those of the test's own module have.
COMMON = ("auth", "contenttypes", "sites", "sessions", "admin", "flatpages", "redirects")
#: But these have many rows, so only the tests of their own apps arm their guards.
MANY_ROWS = ("auth.Permission", "contenttypes.ContentType")


class GuardingRunner(DiscoverRunner):
    """Writes what it found to the file ``BLOOMGUARD_FOUND``, as JSON. Guards only if ``BLOOMGUARD_GUARDED`` is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guarding = Guarding()

    def setup_databases(self, **kwargs: Any) -> Any:
        made = super().setup_databases(**kwargs)
        if os.environ["BLOOMGUARD_GUARDED"]:
            self._guarding.begin()
        return made

    def run_checks(self, databases: Any) -> None:
        """Check nothing: a rebuild would refuse some of Django's models."""

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        result = super().run_suite(suite, **kwargs)
        found = {
            "failed": sorted({case.id().partition(" ")[0] for case, _ in (*result.failures, *result.errors)}),
            "faults": self._guarding.faults,
            "counts": {"tests": result.testsRun, **self._guarding.counts},
        }
        Path(os.environ["BLOOMGUARD_FOUND"]).write_text(json.dumps(found))
        return result


class Guarding:
    """The guards, what they were asked, and what was wrong."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._guards: dict[str, list[str]] = defaultdict(list)  # module of tests, or common app -> names
        self._armed: list[str] = []
        self._test = ""

    def begin(self) -> None:
        """Register the guards, and wrap every test."""
        for model in apps.get_models(include_auto_created=True):
            if model._meta.app_label != "bloomguard" and model._meta.managed and not model._meta.swapped:
                for lookup in lookups(model):
                    self._register(model, lookup)
        self._wrap_tests()
        self._wrap_answers()

    def _register(self, model: Any, lookup: str | tuple[str, ...]) -> None:
        name = f"guard-{len(registry)}"
        options = {"name": name, "lookup": lookup, "filter": os.environ.get("BLOOMGUARD_FILTER", "auto")}
        register(model)(type("DjangosGuard", (Guard,), options))
        app = model._meta.app_label
        self._guards[app if app in COMMON else model.__module__.split(".")[0]].append(name)

    def _of(self, case: Any) -> Iterator[str]:
        """The guards that a test needs: of the models of its module, and of the apps that all use."""
        if settings.DATABASE_ROUTERS and len(case.databases) > 1:
            return  # a rebuild refuses guards whose table several databases have: E137
        module = type(case).__module__.split(".")[0]
        for each in dict.fromkeys((module, *COMMON)):
            for name in self._guards.get(each, ()):
                if module in ("auth_tests", "contenttypes_tests") or registry[name].model._meta.label not in MANY_ROWS:
                    yield name

    def _wrap_tests(self) -> None:
        case_class: Any = unittest.TestCase
        set_up, call = case_class._callSetUp, case_class._callTestMethod

        def call_set_up(case: Any) -> None:
            self._test, self._armed = case.id(), []
            if isinstance(case, TransactionTestCase):
                block = ExitStack()
                case.addCleanup(block.close)
                for name in self._of(case):
                    with suppress(Exception):  # no key can be made, or the test may not use the database
                        block.enter_context(guards_armed(name))
                        self._armed.append(name)
                for connection in connections.all(initialized_only=True):
                    connection.queries_log.clear()  # of what arming has sent
            set_up(case)

        def call_test(case: Any, method: Any) -> None:
            with guarded_lookups() if self._armed else nullcontext():
                call(case, method)
            for name in self._armed:
                self._verify(registry[name])

        case_class._callSetUp, case_class._callTestMethod = call_set_up, call_test

    def _verify(self, guard: Guard) -> None:
        """Each row that is there has its key, unless the guard passes everything."""
        sources = Sources(guard)
        try:
            with ExitStack() as savepoints:
                for alias in sources.aliases:
                    if connections[alias].in_atomic_block:
                        savepoints.enter_context(transaction.atomic(alias))
                keys = list(_keys(guard, sources))
        except (DatabaseError, RebuildError):  # the test has broken its transaction, or a row has no key
            self.counts["tests not verified"] += 1
            return
        self.counts["rows verified"] += len(keys)
        if any(guard._runtime.ask(key).verdict is Verdict.ABSENT for key in keys):
            self.faults.append(f"{self._test}: {guard} has not the keys of all rows")

    def _wrap_answers(self) -> None:
        """Send each query that a guard would answer all the same."""
        ask = select._ask

        def ask_and_compare(context: Any, compiler: Any, lookups: Any, result_type: str) -> Any:
            asked = ask(context, compiler, lookups, result_type)
            if asked is None or asked[2].verdict is not Verdict.ABSENT:
                return asked
            before, logged = contexts.get(), len(compiler.connection.queries_log)
            contexts.set(None)
            try:
                copied = compiler.query.clone().get_compiler(connection=compiler.connection)
                found = copied.execute_sql(result_type)
                rows = found if result_type == SINGLE or found is None else list(found)
            finally:
                contexts.set(before)
            self.counts["answers compared"] += 1
            if rows:
                self.faults.append(f"{self._test}: {asked[0].guard} denied {compiler.query}")
            while len(compiler.connection.queries_log) > logged:
                compiler.connection.queries_log.pop()  # the test may count them, and the query is sent once more
            return None

        select._ask = ask_and_compare


def lookups(model: Any) -> Iterator[str | tuple[str, ...]]:
    """By what a row of ``model`` can be looked up."""
    yield "pk"
    yield from (field.name for field in model._meta.concrete_fields if field.unique and not field.primary_key)
    yield from map(tuple, model._meta.unique_together)
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and constraint.fields and not constraint.condition:
            yield tuple(constraint.fields)
