"""Copy a guard's filter from one store to another by its bits, without scanning rows.

    create -> copy all bits -> announce in the state row -> wait until every writer has read the row and every earlier
    writer has ended -> copy the bits that were set meanwhile, and verify -> publish -> drop the original

The original must be complete. Only the state row proves that: it must name the original as the active generation of an
armed guard, and must be unchanged when the copy is announced. As in each rebuild that moves a filter, the announcement
is a fence: requests pass until the copy is published, which takes about two seconds and the time to read both filters.
Writers that have read it add to the copy only; those that added to the original have ended before its bits are read for
the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..exceptions import BuilderBusy, FilterError, RebuildError, StoreError
from ..filters.layout import Layout
from ..guards import Guard
from ..state.row import ARMED, State
from ..stores import Generation, Store, stores
from . import standby
from .plan import open_active, refuse_without_room
from .rebuild import Rebuild

if TYPE_CHECKING:
    from ..filters.codec import Frame


class FilterCopy(Rebuild):
    """A rebuild whose source is the filter in the store ``origin``, an alias of ``BLOOMGUARD["STORES"]``.

    The target is the guard's own store, as in every rebuild; ``options`` are those of :class:`Rebuild`.
    The steps raise :class:`RebuildError` if the original cannot be proved to have every row.
    """

    def __init__(self, guard: Guard, origin: str, **options: Any) -> None:
        super().__init__(guard, **options)
        self.origin: Store = stores[origin].patient
        self._original: Generation  # since :meth:`_plan`, as the state row names it
        self._from: State

    def _plan(self) -> tuple[int, Layout]:
        """Open the original; return the number of rows at its build, and its layout."""
        name, alias = self.guard.name, self.origin.alias
        state, row = self.table.current(name), self.table.row(name)
        with self._naming_origin():
            there = self.origin.identity
        if there and there == self.store.identity:  # that of a folder which does not exist is empty
            raise RebuildError(f"{name}: cannot copy its filter from the store {alias!r} to the same store")
        if row is None or not state.active:
            raise RebuildError(f"{name}: there is no filter to copy; run rebuild_filter without --from-store")
        if state.status != ARMED:
            raise RebuildError(
                f"{name}: its filter may lack rows ({row.reason}), and a copy would too; run rebuild_filter without "
                "--from-store"
            )
        self._from = state
        with self._naming_origin():
            self._original = open_active(self.guard, state, store=self.origin)
        layout = self._original.layout
        if not layout.filter_class.plain_bits:
            raise RebuildError(
                f"{name}: a {layout.kind} filter cannot be copied while rows are written; run rebuild_filter without "
                "--from-store"
            )
        refuse_without_room(self.guard, layout)
        return row.rows, layout

    def prepare(self) -> None:
        """Create the copy and copy all bits: most of the work, done while the original still answers."""
        began = self._clock()
        made = self._create()
        if self._row != self._from:
            raise BuilderBusy(f"{self.guard.name}: its state row changed at the same moment; run it again")
        self._each_shard(lambda shard, frame: made.merge(shard, frame.body))
        made.seal()
        self._seconds += self._clock() - began

    def _fill(self, generation: Generation, expected: int) -> int:
        """Copy the bits that were set since, and read them back; return the number of rows at the original's build."""

        def bring(shard: int, frame: Frame) -> None:
            if generation.merge(shard, frame.body) and generation.merge(shard, frame.body):
                kept = f"{self.guard.name}: shard {shard} of the copy did not keep what was written; run it again"
                raise RebuildError(kept)

        self._each_shard(bring)
        return expected

    def _each_shard(self, act: Callable[[int, Frame], object]) -> None:
        shards, rows = self._original.layout.header.shards, self._expected_rows
        for shard in range(shards):
            with self._naming_origin():
                frame = self._original.read_shard(shard)
            act(shard, frame)
            self._progress(rows * (shard + 1) // shards, rows)
            self._send_heartbeats()

    @contextmanager
    def _naming_origin(self) -> Iterator[None]:
        try:
            yield
        except (StoreError, FilterError) as error:
            name, alias = self.guard.name, self.origin.alias
            raise RebuildError(f"{name}: cannot copy its filter from the store {alias!r}: {error}") from error

    def _source(self) -> str:
        return self._from.source

    def _why_fenced(self, before: State) -> str:
        return f"it is being copied from the store {self.origin.alias} to {self.store.alias}"

    def _log_fenced(self, reason: str) -> None:
        """Log nothing: the copy is published in a moment, and needs no rebuild."""

    def retire(self, state: State) -> bool:
        """Drop the original: no process has answered from it since the fence."""
        for name in self._from.generations:
            try:
                self.origin.drop(self.guard.name, name)
            except StoreError as error:
                standby.log_not_removed(self.guard, error)
        return True
