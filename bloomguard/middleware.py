"""Guard a site: put ``BloomGuardMiddleware`` last in ``MIDDLEWARE``.

It enables lookup guards for the request (:mod:`bloomguard.lookups`), and answers for open routes
(:mod:`bloomguard.routes`) right before Django calls the view: all other middleware has processed the request, and all
of it processes the response. If it stands right before ``FetchFromCacheMiddleware``, it answers one step earlier and
saves the cache query too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.cache import FetchFromCacheMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.gzip import GZipMiddleware
from django.middleware.http import ConditionalGetMiddleware
from django.urls import get_resolver, set_urlconf
from django.utils.cache import set_response_etag
from django.utils.module_loading import import_string

from . import conf
from .door.page import probing
from .guards import Guard, registry
from .log_once import LogOnce
from .lookups.scope import Scope, scopes
from .lookups.shadow import compare_status
from .metrics.outcomes import ablocked, blocked
from .routes.table import NO_ID, GuardedRoute, not_found, table_for
from .verdicts import MAYBE, SHADOW, Decision, Verdict

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]

#: Response header with the decisions of the guards; sent only if ``DEBUG`` is on.
HEADER = "X-Bloomguard"
#: The position in ``MIDDLEWARE``, which determines when the middleware may answer for routes.
LAST, BEFORE_CACHE, ELSEWHERE = "last", "before the cache", "elsewhere"

_log = LogOnce()


class Exchange(Scope):
    """One request in the middleware, with the decisions of its guards."""

    request: HttpRequest
    #: The site's 404 with which a guard answers, and the route of that guard.
    response: HttpResponseBase | None = None
    blocked_by: GuardedRoute | None = None
    #: The route and the ID that a guard in shadow mode would have answered 404.
    shadow: tuple[GuardedRoute, Any] | None = None

    def judge(self, route: GuardedRoute, value: Any, decision: Decision) -> bool:
        """Whether ``decision`` answers the request."""
        if decision is SHADOW and self.shadow is None and self.applies(route.guard):
            self.shadow = route, value
            self.shadowed.add(route.guard.name)  # so only the response is compared, not the queries before it
        return decision.verdict is Verdict.ABSENT and self.applies(route.guard)

    def answer(self, route: GuardedRoute, value: Any, response: HttpResponseBase | None) -> bool:
        """Store the site's 404 for ``value``; return whether there is one."""
        if response is None:
            self.note_counted(route.guard, value)
        else:
            self.response, self.blocked_by = response, route
        return response is not None

    def is_passed(self, response: HttpResponseBase) -> bool:
        """Whether nothing is left to do for the request, as for nearly all requests: no guard has answered."""
        return response.status_code != 404 and self.shadow is None and not self.avoided

    def end(self, response: HttpResponseBase) -> Guard | None:
        """Close the exchange; return the guard that caused the 404, if any."""
        if self.blocked_by is not None:
            self.close()
            return self.blocked_by.guard
        return self.close(response.status_code)


class BloomGuardMiddleware:
    """Let guards answer requests for rows that do not exist, and pass all other requests unchanged."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._debug: bool = settings.DEBUG
        self.place = place_in_settings(type(self))
        self._sets_etags = _sets_plain_etags(_classes())
        self._async = iscoroutinefunction(get_response)
        if self.place == LAST:
            self.process_view: Callable[..., Any] = self._aview if self._async else self._view
        if self._async:
            markcoroutinefunction(self)

    # Sync and async do the same: open the exchange, pass the request on, process the response.

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._async:
            return self._acall(request)
        if request.method not in registry.methods or not conf.settings.is_enabled or probing.get():
            return self.get_response(request)
        exchange = Exchange(request)
        before = scopes.get()
        scopes.set(exchange)
        try:
            if self.place != BEFORE_CACHE or not self._answer(exchange, _routes_before_cache(request)):
                response: HttpResponseBase = self.get_response(request)  # type: ignore[assignment]
        finally:
            scopes.set(before)
            exchange.is_over = True
        if exchange.response is None and not self._debug and exchange.is_passed(response):
            return response
        response = exchange.response or response
        guard = exchange.end(response)
        if guard is not None:
            blocked(guard, request)
        if exchange.shadow is not None:
            route, value = exchange.shadow
            compare_status(exchange, route.guard, value, response.status_code)
        return self._mark(exchange, response)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        if request.method not in registry.methods or not conf.settings.is_enabled or probing.get():
            return await self.get_response(request)  # type: ignore[misc, no-any-return]
        exchange = Exchange(request)
        before = scopes.get()
        scopes.set(exchange)
        try:
            if self.place != BEFORE_CACHE or not await self._aanswer(exchange, _routes_before_cache(request)):
                response: HttpResponseBase = await self.get_response(request)  # type: ignore[misc]
        finally:
            scopes.set(before)
            exchange.is_over = True
        if exchange.response is None and not self._debug and exchange.is_passed(response):
            return response
        response = exchange.response or response
        guard = exchange.end(response)
        if guard is not None:
            await ablocked(guard, request)
        if exchange.shadow is not None:
            route, value = exchange.shadow
            compare = sync_to_async(compare_status, thread_sensitive=False)  # it may read state rows
            await compare(exchange, route.guard, value, response.status_code)
        return self._mark(exchange, response)

    # Called after Django has resolved the path, right before the view.

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        routes = _routes_of_view(request, view, kwargs)
        exchange = _exchange_of(request) if routes else None
        if exchange is not None and self._answer(exchange, routes):
            return HttpResponse()  # `__call__` replaces it with the site's 404
        return None

    async def _aview(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        routes = _routes_of_view(request, view, kwargs)
        exchange = _exchange_of(request) if routes else None
        if exchange is not None and await self._aanswer(exchange, routes):
            return HttpResponse()
        return None

    # Check the guards of the routes one by one. Never raises.

    def _answer(self, exchange: Exchange, routes: list[tuple[GuardedRoute, Any]]) -> bool:
        try:
            for route, value in routes:
                decision = exchange.decide(route.guard, value)
                if decision is not MAYBE and exchange.judge(route, value, decision):
                    return exchange.answer(route, value, not_found(exchange.request, route))
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an internal error")
        return False

    async def _aanswer(self, exchange: Exchange, routes: list[tuple[GuardedRoute, Any]]) -> bool:
        try:
            for route, value in routes:
                decision = await exchange.adecide(route.guard, value)
                if decision is not MAYBE and exchange.judge(route, value, decision):
                    make = sync_to_async(not_found, thread_sensitive=False)
                    return exchange.answer(route, value, await make(exchange.request, route))
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an internal error")
        return False

    def _mark(self, exchange: Exchange, response: HttpResponseBase) -> HttpResponseBase:
        """Add headers; a cache must not keep a guarded 404, because it would stay after the row is created."""
        if exchange.asked:
            # For 404s of guards and views alike: a difference would reveal which rows exist but are hidden.
            if response.status_code == 404 and not response.has_header("Cache-Control"):
                if self._sets_etags and exchange.request.method == "GET" and not response.has_header("ETag"):
                    set_response_etag(response)  # ConditionalGetMiddleware sets none with `no-store`
                response.headers["Cache-Control"] = "no-store"
            if self._debug:
                texts = (f"{name}: {_text(decision)}" for name, decision in exchange.decisions.items())
                response.headers[HEADER] = ", ".join(texts)
        return response


def _exchange_of(request: HttpRequest) -> Exchange | None:
    exchange = scopes.get()
    return exchange if type(exchange) is Exchange and exchange.request is request and not exchange.is_over else None


def _routes_of_view(request: HttpRequest, view: Any, kwargs: dict[str, Any]) -> list[tuple[GuardedRoute, Any]]:
    """Return the open routes of a request after Django found its view, each with the ID. Never raises."""
    try:
        known = table_for(getattr(request, "urlconf", None)).by_view.get(view)
        if known is None:
            return []
        return [
            (route, value)
            for route in known
            if request.method in route.methods
            and route.pattern.is_of(request.resolver_match)
            and (value := route.value(kwargs)) is not NO_ID
        ]
    except Exception as error:
        _log.error(error, "bloomguard lets requests pass because of an internal error")
        return []


def _routes_before_cache(request: HttpRequest) -> list[tuple[GuardedRoute, Any]]:
    """Like :func:`_routes_of_view`, but before the cache is queried: Django's resolver finds the view. Never raises."""
    urlconf = getattr(request, "urlconf", None)
    try:
        if not table_for(urlconf).open:
            return []
        if urlconf is not None:
            set_urlconf(urlconf)
        match = get_resolver(urlconf).resolve(request.path_info)
    except Exception:  # Django resolves the path again and raises it again
        return []
    request.resolver_match = match  # Django sets it again if the request goes on
    return _routes_of_view(request, match.func, match.kwargs)


def _text(decision: Decision) -> str:
    verdict = decision.verdict.value
    return verdict if decision.reason == verdict else f"{verdict} ({decision.reason})"


def place_in_settings(cls: type) -> str:
    """Return the position of ``cls``. Middleware after it has not processed the request when it answers."""
    classes = _classes()
    if cls not in classes:
        return ELSEWHERE
    before, after = classes[: classes.index(cls)], classes[classes.index(cls) + 1 :]
    if not after:
        return LAST
    is_cache = isinstance(after[0], type) and issubclass(after[0], FetchFromCacheMiddleware)
    if len(after) > 1 or not is_cache:
        return ELSEWHERE
    # The `process_view` of other middleware has not run yet. That of Django's own passes GET requests.
    views = [each for each in before if hasattr(each, "process_view") and not _passes_every_view(each)]
    return ELSEWHERE if views else BEFORE_CACHE


def _classes() -> list[Any]:
    """Return the classes in ``MIDDLEWARE``, with ``None`` for those that cannot be imported: Django reports them."""
    found: list[Any] = []
    for path in settings.MIDDLEWARE:
        try:
            found.append(import_string(path))
        except ImportError:
            found.append(None)
    return found


def _sets_plain_etags(classes: list[Any]) -> bool:
    """Whether ``ConditionalGetMiddleware`` sets ETags, from bodies that ``GZipMiddleware`` has not compressed."""
    for place, each in enumerate(classes):
        if isinstance(each, type) and issubclass(each, ConditionalGetMiddleware):
            return GZipMiddleware not in classes[place + 1 :]
    return False


def _passes_every_view(middleware: Any) -> bool:
    """Whether its ``process_view`` lets Django call every view for which a guard may answer."""
    name = f"{getattr(middleware, '__module__', '')}.{getattr(middleware, '__qualname__', '')}"
    return middleware is CsrfViewMiddleware or name in _HARMLESS


#: With LoginRequiredMiddleware, a route that demands a login is closed anyway.
_HARMLESS = frozenset(
    {
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
        "django.contrib.admindocs.middleware.XViewMiddleware",
    }
)
