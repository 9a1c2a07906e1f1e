"""A health check view for load balancers and monitoring: which guards are armed, and why the others are not.

    path("healthz/guards/", HealthView.as_view())

A guard that is not armed lets every request pass, so the site works, but unguarded. Therefore the status is 200, unless
a guard that the project lists in ``require`` is not armed.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views import View

from ..guards import Guard, registry
from ..process import start_thread
from ..state.row import ARMED
from ..state.verdicts import LEASE, Decision

#: Seconds for which an event loop waits for the states of the guards.
_LOOP_SECONDS = 0.1


def state_of(guard: Guard) -> str:
    """Return ``"armed"``, or why this process lets every request pass, such as ``"cold"``. May wait. Never raises."""
    answering = guard._runtime.answering()
    return answering.reason if isinstance(answering, Decision) else ARMED


def armed_guards() -> dict[str, bool]:
    """Return whether each guard is armed, by its name; without those for which the database does not answer.

    Never raises. On an event loop, where an ASGI app of metrics collects and Django refuses queries, a thread asks.
    """
    armed: dict[str, bool] = {}

    def ask() -> None:
        for guard in registry:
            state = state_of(guard)
            if state != LEASE.reason:
                armed[guard.name] = state == ARMED

    if _get_running_loop() is None:
        ask()
    else:
        with suppress(RuntimeError):  # no thread can be started
            start_thread(ask).wait(_LOOP_SECONDS)
    return armed.copy()  # the thread may go on


def mode_of(guard: Guard) -> str:
    """Return ``"enforce"`` or ``"shadow"``: as set in the admin, else as the guard declares. Never raises."""
    try:
        return guard._runtime.mode
    except Exception:  # the guard is misconfigured
        return guard.mode


class HealthView(View):
    """A view that returns ``{"status": "armed", "guards": {"city": {"state": "armed", "mode": "enforce"}}}``.

    ``status`` is ``"armed"`` if all guards are armed, else ``"passing"``. The HTTP status is 503 only if a guard named
    in ``require``, one or several, is not armed or does not exist; ``require = "all"`` names all guards.
    """

    require: Iterable[str] = ()

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
        """Return the state of every guard in this process."""
        guards = {guard.name: {"state": state_of(guard), "mode": mode_of(guard)} for guard in registry}
        required = {self.require} if isinstance(self.require, str) else set(self.require)
        required = set(guards) if self.require == "all" else required
        guards |= {name: {"state": "not registered", "mode": ""} for name in sorted(required - set(guards))}
        passing = {name for name, guard in guards.items() if guard["state"] != ARMED}
        return JsonResponse(
            {"status": "passing" if passing else ARMED, "guards": guards},
            status=503 if required & passing else 200,
            headers={"Cache-Control": "no-store"},
        )
