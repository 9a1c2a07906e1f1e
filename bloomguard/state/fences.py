"""Waiting for fences: a row that a filter may lack becomes visible when every process knows of the fence."""

from __future__ import annotations

from .row import ARMED, State
from .table import EXPIRY_SECONDS, StateTable


def meet(table: StateTable, state: State) -> None:
    """Note when this process first read each fence, of ``state`` and of the other rows that were read with it."""
    if not _is_met(table, state):
        now = table.clock()  # the fences were committed before the rows were read
        for row in (*table.copy.rows.values(), state):
            if not _is_met(table, row):
                table.fences[row.name] = row.fenced_at, now


def wait_for(table: StateTable, state: State) -> None:
    """Wait, once per fence, before a row becomes visible: for two leases a process may still miss the fence.

    Fences that one read has found are waited for together. Also a fence without an active generation is waited for: a
    loaded dump may have replaced a row that had one.
    """
    if state.status == ARMED:
        return
    meet(table, state)
    wait = table.fences[state.name][1] + EXPIRY_SECONDS - table.clock()
    if wait > 0:
        table.sleep(wait)
        table.renew()


def waited_for(table: StateTable, state: State) -> None:
    """Note that the fence of ``state`` needs no wait: the transaction that set it has waited, and is still open."""
    if state.status != ARMED:
        table.fences[state.name] = state.fenced_at, float("-inf")


def _is_met(table: StateTable, row: State) -> bool:
    return row.status == ARMED or table.fences.get(row.name, ("", 0.0))[0] == row.fenced_at
