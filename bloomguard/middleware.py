"""Guard a site: put ``BloomGuardMiddleware`` last in ``MIDDLEWARE``.

It opens the request's lookups (:mod:`bloomguard.lookups`), and answers for open routes (:mod:`bloomguard.routes`) when
Django is about to call the view: every other middleware has had the request, and the answer goes back through all of
them. Right before ``FetchFromCacheMiddleware`` it answers one step earlier, so that the cache is not asked either.
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

from .counting.outcomes import ablocked, blocked
from .door.page import probing
from .guards import Guard, registry
from .log_once import LogOnce
from .lookups.scope import Scope, scopes
from .lookups.shadow import compare_status
from .routes.not_found import not_found
from .routes.table import NO_ID, GuardedRoute, table_for
from .verdicts import MAYBE, SHADOW, Decision, Verdict

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]

#: While ``DEBUG`` is on, a response says what guards said of its request.
HEADER = "X-Bloomguard"
#: Where in ``MIDDLEWARE`` it stands, and so where it may answer for routes.
LAST, BEFORE_CACHE, ELSEWHERE = "last", "before the cache", "elsewhere"

_log = LogOnce()


class Exchange(Scope):
    """One request on its way through the middleware, and what its guards said."""

    request: HttpRequest
    #: The site's 404 that a guard has asked for, and that guard's route.
    response: HttpResponseBase | None = None
    blocked_by: GuardedRoute | None = None
    #: What a guard in shadow mode would have answered 404.
    shadow: tuple[GuardedRoute, Any] | None = None

    def judge(self, route: GuardedRoute, value: Any, decision: Decision) -> bool:
        """Whether ``decision`` answers the request."""
        if decision is SHADOW and self.shadow is None and self.applies(route.guard):
            self.shadow = route, value
            self.shadowed.add(route.guard.name)  # the response is compared, and no query before it
        return decision.verdict is Verdict.ABSENT and self.applies(route.guard)

    def answer(self, route: GuardedRoute, value: Any, response: HttpResponseBase | None) -> bool:
        """Note the site's 404 for ``value``; whether there is one."""
        if response is None:
            self.note_counted(route.guard, value)
        else:
            self.response, self.blocked_by = response, route
        return response is not None

    def is_passed(self, response: HttpResponseBase) -> bool:
        """Whether nothing is left to do for the request, as for nearly all: no guard has answered anything."""
        return response.status_code != 404 and self.shadow is None and not self.spared

    def end(self, response: HttpResponseBase) -> Guard | None:
        """The guard to which the request's 404 is owed, if any."""
        if self.blocked_by is not None:
            self.close()
            return self.blocked_by.guard
        return self.close(response.status_code)


class BloomGuardMiddleware:
    """Lets guards answer requests for rows that do not exist; everything else goes on as it came."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._debug: bool = settings.DEBUG
        self.place = place_in_settings(type(self))
        self._sets_etags = _comes_with_etags(_classes())
        self._async = iscoroutinefunction(get_response)
        if self.place == LAST:
            self.process_view: Callable[..., Any] = self._aview if self._async else self._view
        if self._async:
            markcoroutinefunction(self)

    # The same in both ways of running: open the exchange, let the request through, look at the response.

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._async:
            return self._acall(request)
        if request.method not in registry.methods or probing.get():
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
        if request.method not in registry.methods or probing.get():
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
            compare = sync_to_async(compare_status, thread_sensitive=False)  # it may read the state rows
            await compare(exchange, route.guard, value, response.status_code)
        return self._mark(exchange, response)

    # Django has resolved the path, and calls the view next.

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        routes = _routes_of_view(request, view, kwargs)
        exchange = _exchange_of(request) if routes else None
        if exchange is not None and self._answer(exchange, routes):
            return HttpResponse()  # in place of which `__call__` sends the site's 404
        return None

    async def _aview(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        routes = _routes_of_view(request, view, kwargs)
        exchange = _exchange_of(request) if routes else None
        if exchange is not None and await self._aanswer(exchange, routes):
            return HttpResponse()
        return None

    # Ask the guards of the request's routes one by one. Never raises.

    def _answer(self, exchange: Exchange, routes: list[tuple[GuardedRoute, Any]]) -> bool:
        try:
            for route, value in routes:
                decision = exchange.decide(route.guard, value)
                if decision is not MAYBE and exchange.judge(route, value, decision):
                    return exchange.answer(route, value, not_found(exchange.request, route))
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an error of its own")
        return False

    async def _aanswer(self, exchange: Exchange, routes: list[tuple[GuardedRoute, Any]]) -> bool:
        try:
            for route, value in routes:
                decision = await exchange.adecide(route.guard, value)
                if decision is not MAYBE and exchange.judge(route, value, decision):
                    make = sync_to_async(not_found, thread_sensitive=False)
                    return exchange.answer(route, value, await make(exchange.request, route))
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an error of its own")
        return False

    def _mark(self, exchange: Exchange, response: HttpResponseBase) -> HttpResponseBase:
        """Keep a 404 of a guarded request out of caches, where it would outlive the creation of the row."""
        if exchange.asked:
            # Whoever made it, a guard or the view: a difference would tell hidden rows from absent ones.
            if response.status_code == 404 and not response.has_header("Cache-Control"):
                if self._sets_etags and exchange.request.method == "GET" and not response.has_header("ETag"):
                    set_response_etag(response)  # which ConditionalGetMiddleware leaves out for `no-store`
                response.headers["Cache-Control"] = "no-store"
            if self._debug:
                said = (f"{name}: {_said(decision)}" for name, decision in exchange.decisions.items())
                response.headers[HEADER] = ", ".join(said)
        return response


def _exchange_of(request: HttpRequest) -> Exchange | None:
    exchange = scopes.get()
    return exchange if type(exchange) is Exchange and exchange.request is request and not exchange.is_over else None


def _routes_of_view(request: HttpRequest, view: Any, kwargs: dict[str, Any]) -> list[tuple[GuardedRoute, Any]]:
    """The open routes of a request whose view Django has found, each with the ID. Never raises."""
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
        _log.error(error, "bloomguard lets requests pass because of an error of its own")
        return []


def _routes_before_cache(request: HttpRequest) -> list[tuple[GuardedRoute, Any]]:
    """The same before the cache is asked: Django's own resolver says which view the request will have."""
    urlconf = getattr(request, "urlconf", None)
    try:
        if not table_for(urlconf).open:
            return []
        if urlconf is not None:
            set_urlconf(urlconf)
        match = get_resolver(urlconf).resolve(request.path_info)
    except Exception:  # which Django raises once more, to whom it concerns
        return []
    request.resolver_match = match  # as Django sets it again if the request goes on
    return _routes_of_view(request, match.func, match.kwargs)


def _said(decision: Decision) -> str:
    verdict = decision.verdict.value
    return verdict if decision.reason == verdict else f"{verdict} ({decision.reason})"


def place_in_settings(cls: type) -> str:
    """Where ``cls`` stands in ``MIDDLEWARE``: what comes after it has not had the request when it answers."""
    classes = _classes()
    if cls not in classes:
        return ELSEWHERE
    before, after = classes[: classes.index(cls)], classes[classes.index(cls) + 1 :]
    if not after:
        return LAST
    is_cache = isinstance(after[0], type) and issubclass(after[0], FetchFromCacheMiddleware)
    if len(after) > 1 or not is_cache:
        return ELSEWHERE
    # Middleware that looks at the view has not had its say yet: Django's own let a GET request pass.
    views = [each for each in before if hasattr(each, "process_view") and not _looks_in_vain(each)]
    return ELSEWHERE if views else BEFORE_CACHE


def _classes() -> list[Any]:
    """What ``MIDDLEWARE`` names, with ``None`` for what is not found: Django says so itself."""
    found: list[Any] = []
    for path in settings.MIDDLEWARE:
        try:
            found.append(import_string(path))
        except ImportError:
            found.append(None)
    return found


def _comes_with_etags(classes: list[Any]) -> bool:
    """Whether ``ConditionalGetMiddleware`` makes ETags, of bodies as they leave this middleware and not compressed."""
    for place, each in enumerate(classes):
        if isinstance(each, type) and issubclass(each, ConditionalGetMiddleware):
            return GZipMiddleware not in classes[place + 1 :]
    return False


def _looks_in_vain(middleware: Any) -> bool:
    """Whether its ``process_view`` lets every view be called that a guard may answer for."""
    name = f"{getattr(middleware, '__module__', '')}.{getattr(middleware, '__qualname__', '')}"
    return middleware is CsrfViewMiddleware or name in _HARMLESS


#: For LoginRequiredMiddleware no route is open that demands a login.
_HARMLESS = frozenset(
    {
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
        "django.contrib.admindocs.middleware.XViewMiddleware",
    }
)
