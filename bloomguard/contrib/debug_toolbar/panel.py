"""What guards said of one request, in the debug toolbar."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

from debug_toolbar.panels import Panel
from django.http import HttpRequest, HttpResponse

from ...guards import Guard
from ...hearing import digest, listeners
from ...routes.explain import MEANING
from ...verdicts import Decision, Verdict

Heard = list[dict[str, str]]

#: What is heard of the request that is being answered; a thread that asks on its behalf has it, too.
_heard: ContextVar[Heard | None] = ContextVar("bloomguard_heard", default=None)


def _hear(guard: Guard, value: Any, decision: Decision) -> None:
    heard = _heard.get()
    if heard is not None:
        heard.append(
            {
                "guard": guard.name,
                "key": digest(guard, value),
                "verdict": decision.verdict.value,
                "reason": decision.reason,
                "meaning": MEANING.get(decision.reason, ""),
            }
        )


class VerdictsPanel(Panel):  # type: ignore[misc]
    """Every verdict of the request with its reason; IDs as digests, which tell the same ID from another one."""

    title = "Guards"
    nav_title = "Guards"
    template = "bloomguard/debug_toolbar_panel.html"
    is_async = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verdicts: Heard = []
        self._token: Token[Heard | None] | None = None

    @property
    def nav_subtitle(self) -> str:
        """``2 verdicts, 1 absent``."""
        heard = self.get_stats().get("verdicts", [])
        absent = sum(each["verdict"] == Verdict.ABSENT.value for each in heard)
        return f"{len(heard)} verdict{'s' * (len(heard) != 1)}, {absent} absent"

    def enable_instrumentation(self) -> None:
        """Begin to hear."""
        if _hear not in listeners:
            listeners.append(_hear)
        self._token = _heard.set(self._verdicts)

    def disable_instrumentation(self) -> None:
        """Hear no more."""
        if self._token is not None:
            _heard.reset(self._token)
            self._token = None

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        """Keep what was heard."""
        self.record_stats({"verdicts": self._verdicts})
