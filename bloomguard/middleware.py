"""Guard a site: put ``BloomGuardMiddleware`` last in ``MIDDLEWARE``.

It enables lookup guards for the request (:mod:`bloomguard.lookups`), and answers for open routes
(:mod:`bloomguard.routes`) right before Django calls the view: all other middleware has processed the request, and all
of it processes the response. If it stands right before ``FetchFromCacheMiddleware``, it answers one step earlier and
saves the cache query too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.cache import FetchFromCacheMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.gzip import GZipMiddleware
from django.middleware.http import ConditionalGetMiddleware
from django.urls import get_resolver, set_urlconf
from django.utils.cache import set_response_etag

from . import conf
from .door.page import probing
from .guards import Guard, registry
from .guards.counters import BLOCKED
from .lookups.context import Answer, LookupContext, contexts
from .lookups.shadow import compare_status
from .process import LogOnce
from .routes.openness import middleware_classes
from .routes.table import not_found, routes_of, table_for
from .signals import asend, request_blocked, send
from .verdicts import SHADOW, Verdict, in_words

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]

#: Response header with the decisions of the guards; sent only if ``DEBUG`` is on.
HEADER = "X-Bloomguard"
#: The position in ``MIDDLEWARE``, which determines when the middleware may answer for routes.
LAST, BEFORE_CACHE, ELSEWHERE = "last", "before the cache", "elsewhere"
#: Steps from the middleware to Django's handler: one or two for each middleware between them, which is the cache's.
_DEEPEST = 10

_log = LogOnce()


class Exchange(LookupContext):
    """One request in the middleware, with the answers of its guards."""

    request: HttpRequest
    #: The answer at a route that blocks the request, and the site's 404 for it.
    answer: Answer | None = None
    response: HttpResponseBase | None = None
    #: The answer at a route that would block the request if its guard were not in shadow mode.
    shadow: Answer | None = None

    def note_shadow(self, answer: Answer) -> None:
        """Record what would block the request."""
        if self.shadow is None and self.applies(answer.guard):
            self.shadow = answer
            self.shadowed.add(answer.guard.name)  # so only the response is compared, not the queries before it

    def end(self, response: HttpResponseBase, etags: bool) -> Guard | None:
        """Close the exchange and set headers; return the guard that caused the 404, if any, for the signal.

        A cache must not keep a guarded 404, because it would stay after the row is created. For 404s of guards and
        views alike: a difference would reveal which rows exist but are hidden.
        """
        guard = self.answer.guard if self.answer is not None else None
        if self.avoided:
            guard = self.close(0 if guard is not None else response.status_code) or guard
        if guard is not None:
            guard._runtime.counters[BLOCKED]()
        if self.answers and response.status_code == 404 and not response.has_header("Cache-Control"):
            if etags and self.request.method == "GET" and not response.has_header("ETag"):
                set_response_etag(response)  # ConditionalGetMiddleware sets none with `no-store`
            response.headers["Cache-Control"] = "no-store"
        return guard


class BloomGuardMiddleware:
    """Let guards answer requests for rows that do not exist, and pass all other requests unchanged."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._debug: bool = settings.DEBUG
        self.place = place_in_settings(type(self))
        self._sets_etags = _sets_plain_etags(middleware_classes())
        self._async = iscoroutinefunction(get_response)
        if self.place == LAST:
            self.process_view: Callable[..., Any] = self._aview if self._async else self._view
        if self._async:
            markcoroutinefunction(self)

    # The classes in `MIDDLEWARE` lack what a factory function makes, or what ``__init__`` sets. Django has loaded all
    # of it when the first request comes.

    @cached_property
    def _exceptions_are_answered(self) -> bool:
        """Whether middleware may answer the ``Http404`` of a view."""
        handler = _handler_of(self.get_response)
        return handler is None or bool(getattr(handler, "_exception_middleware", True))

    @cached_property
    def _is_before_cache(self) -> bool:
        """Whether a guard may answer before the cache is asked: every ``process_view`` is a known one."""
        if self.place != BEFORE_CACHE:
            return False
        known = [each for each in middleware_classes() if hasattr(each, "process_view")]
        return len(getattr(_handler_of(self.get_response), "_view_middleware", ())) == len(known)

    # Sync and async do the same: open the exchange, pass the request on, process the response.

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._async:
            return self._acall(request)
        if request.method not in registry.methods or not conf.settings.is_enabled or probing.get():
            return self._pass(request)
        exchange = Exchange(request)
        before = contexts.get()
        contexts.set(exchange)
        try:
            found = _view_before_cache(request) if self._is_before_cache else None
            response: Any = self._view(request, *found) if found else None
            if response is None:
                response = self.get_response(request)
        finally:
            contexts.set(before)
            exchange.is_over = True
        if exchange.response is not None:  # one without content may be false
            response = exchange.response
        if exchange.answer is not None or response.status_code == 404 or exchange.avoided:
            guard = exchange.end(response, self._sets_etags)
            if guard is not None and request_blocked.receivers:
                send(request_blocked, type(guard), guard=guard, request=request)
        if exchange.shadow is not None:
            compare_status(exchange, exchange.shadow.guard, exchange.shadow.value, response.status_code)
        return _debugged(exchange, response) if self._debug else response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        if request.method not in registry.methods or not conf.settings.is_enabled or probing.get():
            return await self._apass(request)
        exchange = Exchange(request)
        before = contexts.get()
        contexts.set(exchange)
        try:
            if getattr(request, "urlconf", None) not in registry.plans.routes:
                await _abuild_table(request)
            found = _view_before_cache(request) if self._is_before_cache else None
            response: Any = await self._aview(request, *found) if found else None
            if response is None:
                response = await self.get_response(request)  # type: ignore[misc]
        finally:
            contexts.set(before)
            exchange.is_over = True
        if exchange.response is not None:  # one without content may be false
            response = exchange.response
        if exchange.answer is not None or response.status_code == 404 or exchange.avoided:
            guard = exchange.end(response, self._sets_etags)
            if guard is not None and request_blocked.receivers:
                await asend(request_blocked, type(guard), guard=guard, request=request)
        if exchange.shadow is not None:
            compare = sync_to_async(compare_status, thread_sensitive=False)  # it may read state rows
            await compare(exchange, exchange.shadow.guard, exchange.shadow.value, response.status_code)
        return _debugged(exchange, response) if self._debug else response

    # A request that no guard answers may be sent by the view of one that guards do, as by a test client.

    def _pass(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        before = contexts.get()
        contexts.set(None)
        try:
            return self.get_response(request)
        finally:
            contexts.set(before)

    async def _apass(self, request: HttpRequest) -> HttpResponseBase:
        before = contexts.get()
        contexts.set(None)
        try:
            return await self.get_response(request)  # type: ignore[misc, no-any-return]
        finally:
            contexts.set(before)

    # Called right before the view: ask the guards of its routes one by one. Never raises.

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        try:
            routes, exchange = routes_of(request, view, kwargs), contexts.get()
            if not routes or type(exchange) is not Exchange or exchange.request is not request or exchange.is_over:
                return None
            for route, value in routes:
                if self._exceptions_are_answered and not route.guard.public:
                    continue
                answer = exchange.ask(route.guard, value)
                if (
                    answer.verdict is Verdict.ABSENT
                    and (type(value) is not int or value >> 63 or len(kwargs) > 1)  # hot path: one number needs no call
                    and route.may_raise(value, kwargs)
                ):
                    exchange.note_counted(answer)
                    continue
                if answer.verdict is Verdict.ABSENT and exchange.applies(route.guard):
                    exchange.response = not_found(request, route)
                    if exchange.response is not None:
                        exchange.answer = answer
                        return HttpResponse()  # `__call__` replaces it with the site's 404
                    exchange.note_counted(answer)
                    return None
                if answer.reason == SHADOW.reason and not route.may_raise(value, kwargs):
                    exchange.note_shadow(answer)
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an internal error")
        return None

    async def _aview(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        try:
            routes, exchange = routes_of(request, view, kwargs), contexts.get()
            if not routes or type(exchange) is not Exchange or exchange.request is not request or exchange.is_over:
                return None
            for route, value in routes:
                if self._exceptions_are_answered and not route.guard.public:
                    continue
                answer = await exchange.aask(route.guard, value)
                if (
                    answer.verdict is Verdict.ABSENT
                    and (type(value) is not int or value >> 63 or len(kwargs) > 1)  # hot path: one number needs no call
                    and route.may_raise(value, kwargs)
                ):
                    exchange.note_counted(answer)
                    continue
                if answer.verdict is Verdict.ABSENT and exchange.applies(route.guard):
                    exchange.response = await sync_to_async(not_found, thread_sensitive=False)(request, route)
                    if exchange.response is not None:
                        exchange.answer = answer
                        return HttpResponse()
                    exchange.note_counted(answer)
                    return None
                if answer.reason == SHADOW.reason and not route.may_raise(value, kwargs):
                    exchange.note_shadow(answer)
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass because of an internal error")
        return None


def _handler_of(get_response: Any) -> BaseHandler | None:
    """Return Django's handler, which calls the view at the end of the chain; ``None`` if it is not found."""
    for _ in range(_DEEPEST):
        owner = getattr(get_response, "__self__", None)
        if isinstance(owner, BaseHandler):
            return owner
        # Django wraps each middleware to convert its exceptions.
        get_response = getattr(get_response, "__wrapped__", None) or getattr(get_response, "get_response", None)
    return None


def _view_before_cache(request: HttpRequest) -> tuple[Any, Any, dict[str, Any]] | None:
    """Return what ``process_view`` gets, before the cache is queried: Django's resolver finds it. Never raises."""
    urlconf = getattr(request, "urlconf", None)
    try:
        if not table_for(urlconf).open:
            return None
        if urlconf is not None:
            set_urlconf(urlconf)
        match = request.resolver_match = get_resolver(urlconf).resolve(request.path_info)  # Django sets it again
    except Exception:  # Django resolves the path again and raises it again
        return None
    return match.func, match.args, match.kwargs


async def _abuild_table(request: HttpRequest) -> None:
    """Build the table of the request's routes in a thread: that takes seconds on a large site. Never raises."""
    with suppress(Exception):  # `_aview` meets the same error, and logs it
        await sync_to_async(table_for, thread_sensitive=False)(getattr(request, "urlconf", None))


def _debugged(exchange: Exchange, response: HttpResponseBase) -> HttpResponseBase:
    """Add the answers of the guards as a header."""
    if exchange.answers:
        answers = exchange.answers.values()
        response.headers[HEADER] = ", ".join(
            f"{each.guard.name}: {in_words(each.verdict.value, each.reason)}" for each in answers
        )
    return response


def place_in_settings(cls: type) -> str:
    """Return the position of ``cls``. Middleware after it has not processed the request when it answers."""
    classes = middleware_classes()
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
