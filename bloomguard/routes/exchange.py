"""One request in the middleware: the guards that were asked, the one that answers with the site's 404, the headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import get_resolver, get_urlconf
from django.utils.cache import set_response_etag
from django.utils.translation import gettext
from django.views.debug import technical_404_response

from ..guards import Guard
from ..guards.counters import AVOIDED, BLOCKED
from ..lookups.context import KNOWN, LookupContext
from ..process import log_once
from ..verdicts import SHADOW, Decision, Verdict, in_words
from .table import GuardedRoute

#: Response header with the decisions of the guards; sent only if ``DEBUG`` is on.
HEADER = "X-Bloomguard"
#: The statuses of pages that Django's cache keeps.
_CACHED = (200, 304)


class Exchange(LookupContext):
    """One request in the middleware."""

    request: HttpRequest

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        #: The door may have asked already. A project may have a ``request.scope`` of another kind.
        carrier = request.META if isinstance(request, WSGIRequest) else getattr(request, "scope", None)
        self.known, self.passed = (carrier.pop(KNOWN, None) if isinstance(carrier, dict) else None) or ({}, ())
        self.avoided = []

    #: The guards that the door has asked for this path, and that let it pass.
    passed: Sequence[Guard]
    #: Its 404 gets the headers of guarded ones, in their order: a guard was asked, if only in another 404 of the view,
    #: or it is a probe of the door.
    is_guarded = False
    #: The guard that answers at the route, and the site's 404; without that the view is called.
    guard: Guard | None = None
    response: HttpResponseBase | None = None
    #: The guard in shadow mode that would have answered at the route, and the value.
    shadow: tuple[Guard, Any] | None = None

    def would_answer(self, route: GuardedRoute, value: Any, captured: dict[str, Any], decision: Decision) -> bool:
        """Return whether the guard answers at the route; if it would but for its shadow mode, record that."""
        if decision.verdict is not Verdict.ABSENT and decision is not SHADOW:
            return False
        # Hot path: one number needs no call.
        if (type(value) is not int or value >> 63 or len(captured) > 1) and route.may_raise(value, captured):
            return False
        if decision is SHADOW:
            if self.shadow is None and self.applies(route.guard):
                self.shadow = route.guard, value
                self.shadowed = (*self.shadowed, route.guard)  # the response is compared, not the queries before it
            return False
        return self.applies(route.guard)

    def guards_to_apply(self, response: HttpResponseBase, asked: dict[Any, frozenset[Guard]]) -> list[Guard]:
        """Return the guards that were asked, if the response is a 404, and whose own ``applies`` was not called.

        It is to be called now: what it reads, such as the session, shows in the headers. If only an absent ID had them,
        they would reveal which rows exist but are hidden. A hidden row may come from a cache, so a guard counts as
        asked here if it was asked in an earlier 404 of the view: ``asked`` has these, and gets the new ones.
        """
        if (self.response or response).status_code != 404:
            return []
        view = getattr(self.request.resolver_match, "view_name", None)
        guards = asked.get(view, frozenset())
        # A copy: a thread of the view may be in the middle of a query.
        for guard, _ in self.known.copy():
            if guard not in guards:
                guards = asked[view] = guards | {guard}
        self.is_guarded = bool(guards)
        found = []
        for guard in guards:  # hot path: a comprehension is a call, and so is `has_own_applies`
            if getattr(guard.applies, "__func__", None) is not Guard.applies and guard not in self.applied:
                found.append(guard)
        return found

    def end(self, response: HttpResponseBase, *, sets_etags: bool, is_debug: bool) -> HttpResponseBase:
        """Count the request, and return the response with its headers set. :attr:`guard` is then what caused the 404.

        404s of guards and views get the same: a difference would reveal which rows exist but are hidden.
        """
        if self.response is not None:
            response = self.response
        else:
            # The last query that a guard answered belongs to the blocked request, each other one is an avoided query.
            self.guard = self.avoided.pop() if self.avoided and response.status_code == 404 else None
        for guard in self.avoided:
            guard._runtime.counters[AVOIDED]()
        if self.guard is not None:
            self.guard._runtime.counters[BLOCKED]()
        if self.is_guarded and response.status_code == 404 and not response.has_header("Cache-Control"):
            # A cache would keep it after the row is created.
            if sets_etags and self.request.method == "GET" and not response.has_header("ETag"):
                set_response_etag(response)  # ConditionalGetMiddleware sets none with `no-store`
            response.headers["Cache-Control"] = "no-store"
        if is_debug and self.known:
            last = {guard.name: decision for (guard, _), decision in self.known.copy().items()}
            response.headers[HEADER] = ", ".join(
                f"{name}: {in_words(decision.verdict.value, decision.reason)}" for name, decision in last.items()
            )
        return response


def not_found(request: HttpRequest, route: GuardedRoute) -> HttpResponseBase | None:
    """Return the response of the site's ``handler404`` to the view's ``Http404``; ``None`` if the view has to run.

    It has to if the handler fails or answers what Django's cache keeps, or the host is not in ``ALLOWED_HOSTS``:
    the cache, also that of ``cache_page``, refuses it.
    The message is the view's own: a site's 404 page may show it. Not for an event loop: it may render a template.
    """
    shown = route.pattern.shown
    if shown is None:
        message = f"No {route.guard.model._meta.object_name} matches the given query."
    else:
        name = shown.model._meta.verbose_name
        message = gettext("No %(verbose_name)s found matching the query") % {"verbose_name": name}
    error = Http404(message)
    try:
        if settings.DEBUG:
            return technical_404_response(request, error)
        request.get_host()
        handler: Any = get_resolver(get_urlconf()).resolve_error_handler(404)
        response: Any = handler(request, exception=error)
        if not getattr(response, "is_rendered", True) and callable(getattr(response, "render", None)):
            response = response.render()
        if isinstance(response, HttpResponseBase) and response.status_code < 500:
            return None if response.status_code in _CACHED else response
        route.guard._runtime.counters["error"]()
    except DisallowedHost:
        pass
    except Exception as failure:
        route.guard._runtime.counters["error"]()
        log_once.error(
            failure, "bloomguard lets requests for %s pass: handler404 fails before the view", route.guard.name
        )
    return None
