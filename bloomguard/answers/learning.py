"""What a view's 404 teaches: the ID may be one that the filter lets through and the database does not have.

A 404 is no proof: the view may hide a row that there is. So the guard asks the database itself, once in a while for
each ID, after the view has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest

from ..complaints import Complaints
from ..routing.reading import NO_ID

if TYPE_CHECKING:
    from ..routes import GuardedRoute

_complaints = Complaints()


def is_worth_learning(request: HttpRequest) -> bool:
    """Whether a guard said MAYBE to ``request``, which was answered 404."""
    return hasattr(request, "bloomguard_maybe")


def learn_from(request: HttpRequest) -> None:
    """``request`` was answered 404, by its view or by what stands before it. Never raises."""
    try:
        route: GuardedRoute | None = getattr(request, "bloomguard_maybe", None)
        match = request.resolver_match
        if route is not None and match is not None and route.pattern.is_of(match):
            value = route.value(match.kwargs)
            if value is not NO_ID:
                route.guard.confirm_missing(value)
    except Exception as error:
        _complaints.say(error, "bloomguard learns nothing from a 404 because of an error of its own")
