"""While ``DEBUG`` is on, a response says what guards said of its request."""

from __future__ import annotations

from typing import TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..guards import Guard
from ..routes import Decide
from ..verdicts import Decision

HEADER = "X-Bloomguard"
_NOTES = "_bloomguard_decisions"

Response = TypeVar("Response")


def noting(request: HttpRequest, decide: Decide) -> Decide:
    """``decide``, and what it says is noted on ``request``."""

    def noted(guard: Guard, value: object) -> Decision | None:
        decision = decide(guard, value)
        if decision is not None:
            note(request, guard, decision)
        return decision

    return noted


def note(request: HttpRequest, guard: Guard, decision: Decision) -> None:
    """Note what ``guard`` said; the last word counts."""
    request.__dict__.setdefault(_NOTES, {})[guard.name] = decision


def tell(request: HttpRequest, response: Response) -> Response:
    """``response``, with a header such as ``city: absent, place: unknown (cold)`` if anything is noted."""
    notes: dict[str, Decision] = request.__dict__.get(_NOTES, {})
    if notes and isinstance(response, HttpResponseBase):
        response.headers[HEADER] = ", ".join(f"{name}: {_said(decision)}" for name, decision in notes.items())
    return response


def _said(decision: Decision) -> str:
    verdict = decision.verdict.value
    return verdict if decision.reason == verdict else f"{verdict} ({decision.reason})"
