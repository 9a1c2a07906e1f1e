"""A panel for django-debug-toolbar with the guards' verdicts on one request.

Put ``"bloomguard.contrib.debug_toolbar.VerdictsPanel"`` into ``DEBUG_TOOLBAR_PANELS``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from debug_toolbar.panels import Panel
from django.http import HttpRequest, HttpResponse

from ..guards import Guard
from ..guards.counters import digest, listeners
from ..state.verdicts import Decision, Verdict

Records = list[dict[str, str]]

#: The verdicts on the current request; threads that work for the request inherit it.
_recorded: ContextVar[Records | None] = ContextVar("bloomguard_verdicts", default=None)


def _record(guard: Guard, value: Any, decision: Decision) -> None:
    records = _recorded.get()
    if records is not None:
        records.append(
            {
                "guard": guard.name,
                "key": digest(guard, value),
                "verdict": decision.verdict.value,
                "reason": decision.reason,
                "meaning": decision.meaning,
            }
        )


class VerdictsPanel(Panel):  # type: ignore[misc]
    """A panel with every verdict on the request and its reason; IDs are shown as digests, equal for equal IDs."""

    title = "Guards"
    template = "bloomguard/debug_toolbar_panel.html"
    is_async = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verdicts: Records = []

    @property
    def nav_subtitle(self) -> str:
        """A summary such as ``2 verdicts, 1 absent``."""
        records = self.get_stats().get("verdicts", [])
        absent = sum(each["verdict"] == Verdict.ABSENT.value for each in records)
        return f"{len(records)} verdict{'s' * (len(records) != 1)}, {absent} absent"

    def enable_instrumentation(self) -> None:
        """Start recording verdicts."""
        if _record not in listeners:
            listeners.append(_record)
        _recorded.set(self._verdicts)

    def disable_instrumentation(self) -> None:
        """Stop recording verdicts."""
        _recorded.set(None)

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        """Store the recorded verdicts."""
        self.record_stats({"verdicts": self._verdicts})
