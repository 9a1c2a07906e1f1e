"""Moves a guard's filter from one store to another by its bits: no row is scanned.

    create -> bring all bits -> announce in the state row -> wait until every writer knows of it and every earlier
    writer has ended -> bring the bits set meanwhile, and see that all are there -> publish -> drop the original

What is copied has to be complete, and only the state row proves that: it has to name the original as the active
generation of an armed guard, and to be unchanged when the copy is announced. The row names one store, so the
announcement is a fence: requests pass from then to the publishing, some two seconds and one reading of both. Writers
hold their rows back until nobody answers from the original any more, as after every fence, and add to the copy alone;
those who wrote to the original before have ended when its bits are read for the last time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from ..exceptions import BuilderBusy, RebuildError, StoreError
from ..filters.choose import KeysSummary
from ..filters.layout import Layout
from ..guards import Guard
from ..models import GuardState
from ..rebuild import Rebuild
from ..stores import Generation, Store, stores
from ..sync.state import ARMED, FENCED, State
from . import standby

if TYPE_CHECKING:
    from ..filters.codec import Frame


class Copy(Rebuild):
    """A rebuild whose source is the filter in the store ``origin``, an alias of ``BLOOMGUARD["STORES"]``.

    The target is the guard's own store, as in every rebuild; ``options`` are those of :class:`Rebuild`.
    Its steps raise :class:`RebuildError` where nothing proves that the original has every row.
    """

    def __init__(self, guard: Guard, origin: str, **options: Any) -> None:
        super().__init__(guard, **options)
        self.origin: Store = stores[origin]
        self._original: Generation | None = None
        self._from: State | None = None

    def _summary(self) -> KeysSummary:
        """The number of rows at the original's build; opens the original."""
        name, alias = self.guard.name, self.origin.alias
        state = self.table.current(name)
        if self.origin.identity == self.store.identity:
            raise RebuildError(f"{name}: its filter is to be copied from the store {alias!r} to the same store")
        if not state.active:
            raise RebuildError(f"{name}: there is no filter to copy; run rebuild_filter without --from-store")
        row = GuardState.objects.using(self.table.connection.alias).get(name=name)
        if state.status != ARMED:
            raise RebuildError(
                f"{name}: its filter may lack rows ({row.reason}), and so would a copy; run rebuild_filter without "
                "--from-store"
            )
        if not state.is_ours:
            raise RebuildError(
                f"{name}: its filter was built from another database, or from this one before it was restored; run "
                "rebuild_filter without --from-store"
            )
        if self.origin.identity != state.identity:
            raise RebuildError(
                f"{name}: its filter does not lie in the store {alias!r}, or was built before that was restarted; name "
                "the store that it was built in, or run rebuild_filter without --from-store"
            )
        self._from = state
        self._original = self.origin.open(name, state.active, self.guard.live.find_key_hash, state.identity)
        return KeysSummary(count=row.rows)

    def _layout(self, summary: KeysSummary, tag: int) -> Layout:
        assert self._original is not None
        layout = self._original.layout
        if not layout.filter_class.plain_bits:
            raise RebuildError(
                f"{self.guard.name}: a {layout.kind} filter cannot be copied while rows are written; run "
                "rebuild_filter without --from-store"
            )
        free = self.store.free_bytes()
        if free is not None and layout.total_bytes > free:
            raise RebuildError(
                f"{self.guard.name}: its filter takes {layout.total_bytes:,} bytes; the store {self.store.alias!r} has "
                f"{free:,} left. Free some, or rebuild it there with a higher error_rate"
            )
        return replace(layout, tag=tag, headers=tuple(replace(header, tag=tag) for header in layout.headers))

    def prepare(self) -> None:
        """Create the copy and bring it all bits: most of the work, while the original still answers."""
        began = self._clock()
        made = self._create()
        if self._seen != self._from:
            raise BuilderBusy(f"{self.guard.name}: its state row changed just now; run it again")
        self._each_shard(lambda shard, frame: made.merge(shard, frame.body))
        made.seal()
        self._seconds += self._clock() - began

    def _fill(self, generation: Generation, expected: int) -> int:
        """Bring what was set since, and read it all back; returns the number of rows at the original's build."""

        def bring(shard: int, frame: Frame) -> None:
            if generation.merge(shard, frame.body) and generation.merge(shard, frame.body):
                raise RebuildError(f"{self.guard.name}: shard {shard} of the copy did not keep what was written")

        self._each_shard(bring)
        return expected

    def _each_shard(self, act: Callable[[int, Frame], object]) -> None:
        assert self._original is not None
        shards, rows = len(self._original.layout.headers), self._expected.count
        for shard in range(shards):
            act(shard, self._original.read_shard(shard))
            self._progress(rows * (shard + 1) // shards, rows)
            for one in self.companions:
                one.beat()

    def fence_replaced(self) -> bool:
        """Nothing here: the announcement is the fence."""
        return False

    def _replacing(self, seen: State) -> dict[str, Any]:
        # The original stays named: that is what makes writers wait for those who may still answer from it.
        reason = f"it moves from the store {self.origin.alias} to {self.store.alias}"
        return {
            "status": FENCED,
            "fenced_at": timezone.now(),
            "reason": reason[:200],
            "standby": "",
            "standby_until": None,
        }

    def retire(self, state: State) -> None:
        """Drop the original: nobody answers from it since it was fenced."""
        assert self._from is not None
        for name in self._from.generations:
            try:
                standby.drop(self.guard, name, self.origin)
            except StoreError as error:
                standby.left_behind(self.guard, error)
