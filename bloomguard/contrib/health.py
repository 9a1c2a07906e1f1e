"""What a load balancer, or whoever is on call, may ask: whether every guard answers, and why not.

    path("healthz/guards/", HealthView.as_view())

A guard that does not answer lets every request pass, so the site works, only unguarded: the answer is 200 in any case,
unless the project says which guards it cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views import View

from ..guards import Guard, registry
from ..verdicts import Decision

ARMED = "armed"


def state_of(guard: Guard) -> str:
    """``"armed"``, or the reason why this process lets every request to the guard pass, such as ``"cold"``.

    Never raises.
    """
    try:
        answering = guard.live.answering()
    except Exception:  # a guard that cannot work: a system check says so
        return "error"
    return answering.reason if isinstance(answering, Decision) else ARMED


def mode_of(guard: Guard) -> str:
    """``"enforce"`` or ``"shadow"``, as somebody has switched it in the admin, else as the guard says. Never raises."""
    try:
        return guard.live.mode or guard.mode
    except Exception:  # a guard that cannot work
        return guard.mode


class HealthView(View):
    """``{"status": "armed", "guards": {"city": {"state": "armed", "mode": "enforce"}}}``.

    ``status`` is ``"armed"`` if all guards are, else ``"passing"``. The answer is 503 only if one of the guards that
    ``require`` names is not armed, or is not there; ``"all"`` stands for all of them.
    """

    require: Iterable[str] = ()

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
        """The state of every guard, as this process sees it."""
        guards = {guard.name: {"state": state_of(guard), "mode": mode_of(guard)} for guard in registry}
        passing = {name for name, guard in guards.items() if guard["state"] != ARMED}
        required = set(guards) if self.require == "all" else set(self.require)
        return JsonResponse(
            {"status": "passing" if passing else ARMED, "guards": guards},
            status=503 if required & passing or required - set(guards) else 200,
            headers={"Cache-Control": "no-store"},
        )
