"""Rules of the package, each broken on purpose: the fuzz has to notice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from django.db import transaction
from django.db.models import QuerySet

from bloomguard.rebuild import rebuild, standby
from bloomguard.state import table as state
from bloomguard.state.active_filter import ActiveFilter
from bloomguard.writes import batches, fencing, observer, raw_fences, statements, updates


@contextmanager
def bulk_create_adds_nothing() -> Iterator[None]:
    """As signals see it."""
    original, add_all = QuerySet.bulk_create, statements.add_all
    inside: list[int] = []

    def bulk_create(self: Any, *arguments: Any, **options: Any) -> Any:
        inside.append(1)
        try:
            return original(self, *arguments, **options)
        finally:
            inside.pop()

    def add_unless(*arguments: Any) -> None:
        if not inside:
            add_all(*arguments)

    with (
        mock.patch.object(QuerySet, "bulk_create", bulk_create),
        mock.patch.object(statements, "add_all", add_unless),
        mock.patch.object(batches, "add_all", add_unless),
    ):
        yield


@contextmanager
def discards_at_once() -> Iterator[None]:
    """As ``post_delete`` does it: the transaction may be rolled back."""

    def now(self: Any, active: ActiveFilter, generation: str, keys: Any) -> None:
        active.discard(keys, generation)

    with mock.patch.object(observer.TransactionObserver, "add_deletes", now):
        yield


@contextmanager
def adds_on_commit() -> Iterator[None]:
    """As most do it who know of transactions: a request comes between the COMMIT and the add."""
    original = statements.add_all

    def add_all(tables: Any, using: str, written_to: Any, complete_rows: Any = (), returned: Any = ()) -> None:
        written = {tracked: written_to(tracked) for tracked in tables}
        transaction.on_commit(partial(original, tables, using, written.get), using=using)

    with ExitStack() as patches:
        for module in (statements, updates, batches):
            patches.enter_context(mock.patch.object(module, "add_all", add_all))
        yield


@contextmanager
def heeds_no_savepoint() -> Iterator[None]:
    """Who goes back to a savepoint by hand has undone a DELETE."""
    with mock.patch.object(observer, "_CONTROL", re.compile("(?!)")):
        yield


@contextmanager
def takes_a_key_for_another_column() -> Iterator[None]:
    """An UPDATE of nothing but the slug brings up no key."""
    original = updates._touched

    def touched(tables: Any, compiler: Any) -> Any:
        only_slug = {field.column for field, _, _ in compiler.query.values} == {"slug"}
        return [] if only_slug else original(tables, compiler)

    with mock.patch.object(updates, "_touched", touched):
        yield


@contextmanager
def forgets_who_is_alive() -> Iterator[None]:
    """An UPDATE brings up new keys by the key's own columns alone."""
    original = updates._touched

    def touched(tables: Any, compiler: Any) -> Any:
        written = {field.column for field, _, _ in compiler.query.values}
        return [
            tracked for tracked in original(tables, compiler)
            if not written.isdisjoint(field.column for field in tracked.guard._meta.fields)
        ]  # fmt: skip

    with mock.patch.object(updates, "_touched", touched):
        yield


@contextmanager
def waits_for_nobody() -> Iterator[None]:
    """A rebuild scans at once: writers do not know of it yet, and others have not committed."""
    with (
        mock.patch.object(rebuild, "EXPIRY_SECONDS", 0.0),
        mock.patch.object(standby, "EXPIRY_SECONDS", 0.0),
        mock.patch.object(rebuild, "wait_for_writers", return_value=None),
    ):
        yield


@contextmanager
def counts_only_new_keys_during_a_build() -> Iterator[None]:
    """The scan has read the page to which a key goes, and not the one that it leaves."""
    with mock.patch.object(ActiveFilter, "may_be_building", return_value=False):
        yield


@contextmanager
def adds_one_piece_of_an_update() -> Iterator[None]:
    """Of an UPDATE of many rows."""
    original, add_all = updates._execute_returning, updates.add_all

    def execute_returning(*arguments: Any) -> Any:
        added: list[Any] = []

        def add_first(*arguments: Any) -> None:
            if not added:
                added.append(add_all(*arguments))

        with mock.patch.object(updates, "add_all", add_first):
            return original(*arguments)

    with mock.patch.object(updates, "_execute_returning", execute_returning):
        yield


@contextmanager
def leases_for_ever() -> Iterator[None]:
    """A copy of the state rows is good for a minute."""
    with mock.patch.object(state, "LEASE_SECONDS", 60.0):
        yield


@contextmanager
def fences_after_the_commit() -> Iterator[None]:
    """Raw SQL is seen, and nobody waits until all processes know."""
    with (
        mock.patch.object(state.StateTable, "fence", return_value=None),
        mock.patch.object(fencing, "_fence_within", return_value=[]),
    ):
        yield


@contextmanager
def sees_no_raw_sql() -> Iterator[None]:
    """What no compiler has made is nobody's business."""
    with mock.patch.object(raw_fences, "affected_guards", return_value={}):
        yield


@contextmanager
def joins_tables_in_one_transaction() -> Iterator[None]:
    """An UPDATE of a child and its parent is undone as a whole, which it is not without bloomguard."""
    original = QuerySet.update

    def update(self: Any, **changes: Any) -> Any:
        with transaction.atomic():
            return original(self, **changes)

    with mock.patch.object(QuerySet, "update", update):
        yield


BROKEN: dict[str, Callable[[], AbstractContextManager[None]]] = {
    function.__name__: function
    for function in (
        bulk_create_adds_nothing, discards_at_once, adds_on_commit, heeds_no_savepoint, takes_a_key_for_another_column,
        forgets_who_is_alive, waits_for_nobody, leases_for_ever, fences_after_the_commit, sees_no_raw_sql,
        joins_tables_in_one_transaction, counts_only_new_keys_during_a_build,
        adds_one_piece_of_an_update,
    )
}  # fmt: skip
#: Those that take more than some tens of steps, or raw SQL.
RARE = frozenset({
    "heeds_no_savepoint", "waits_for_nobody", "leases_for_ever", "joins_tables_in_one_transaction",
    "fences_after_the_commit", "sees_no_raw_sql", "counts_only_new_keys_during_a_build",
})  # fmt: skip
#: Those about discards, which MySQL and MariaDB never have, see ``is_durable`` in bloomguard/state/transactions.py; and
#: about the rows of an UPDATE, which they do not return.
OF_SOME_DATABASES = frozenset({
    "discards_at_once", "heeds_no_savepoint", "counts_only_new_keys_during_a_build", "adds_one_piece_of_an_update",
})  # fmt: skip
