"""Rows of this process that may be in no filter yet."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ..process import own_lock


class Unadded:
    """The writers of this process whose rows may be in no filter yet, each with the names of the guards.

    Only their own transaction sees such rows, so a guard must not answer ABSENT there: in a block of ``adding`` before
    the keys are added, in ``bulk_create`` between its statements, and in a transaction whose fence of the guard is not
    committed yet. Which thread asks is not compared: an async function asks in others for the same code. So
    meanwhile all requests of the process pass. A writer that is gone counts no more.
    """

    def __init__(self) -> None:
        #: Empty nearly always: look here first, as a call costs each blocked request something.
        self.writers: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
        self._lock = own_lock(self, "_lock")

    def begin(self, writer: object, names: Iterable[str]) -> None:
        """Let the guards pass requests until :meth:`end` of ``writer``."""
        with self._lock:
            self.writers.setdefault(writer, set()).update(names)

    def end(self, writer: object) -> None:
        """All keys are added, or the rows are gone, or the fence is known to everyone."""
        with self._lock:
            self.writers.pop(writer, None)

    def may_have(self, name: str) -> bool:
        """Return whether there may be such a row of the guard ``name``."""
        with self._lock:
            return any(name in names for names in list(self.writers.values()))


unadded = Unadded()
