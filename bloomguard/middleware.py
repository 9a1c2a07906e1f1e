"""Guard a site: put ``BloomGuardMiddleware`` last in ``MIDDLEWARE``.

It enables lookup guards for the request (:mod:`bloomguard.lookups`), and answers for open routes
(:mod:`bloomguard.routes`) right before Django calls the view: all other middleware has processed the request, and all
of it processes the response. Right before ``FetchFromCacheMiddleware``, it answers earlier and saves the cache query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.base import BaseHandler
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.middleware.http import ConditionalGetMiddleware
from django.urls import ResolverMatch, get_resolver, get_urlconf, set_urlconf
from django.utils.cache import set_response_etag
from django.utils.translation import gettext
from django.views.debug import technical_404_response

from . import conf
from .guards import Guard, registry
from .guards.counters import AVOIDED, BLOCKED
from .guards.places import in_a_thread
from .lookups.context import KNOWN, NO_ROW, PROBE, LookupContext, compare_status, contexts, in_language
from .process import log_once
from .routes.openness import BEFORE_CACHE, LAST, are_passing, guards_place, middleware_classes
from .routes.table import NO_ID, GuardedRoute, table_for
from .signals import asend, request_blocked, send
from .state.verdicts import SHADOW, Decision, Verdict, in_words

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]

#: Response header with the decisions of the guards; sent only if ``DEBUG`` is on.
HEADER = "X-Bloomguard"
#: The statuses of pages that Django's cache keeps.
_CACHED = (200, 304)
#: Steps from the middleware to Django's handler: one or two for each middleware between them, which is the cache's.
_DEEPEST = 10


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


class BloomGuardMiddleware:
    """Let guards answer requests for rows that do not exist, and pass all other requests unchanged."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response: Any = get_response
        self._is_debug: bool = settings.DEBUG
        self.place = guards_place()
        self._sets_etags = _sets_plain_etags(middleware_classes())
        #: The name of a view -> the guards that were asked in its 404s.
        self._asked: dict[Any, frozenset[Guard]] = {}
        #: Returned in place of calling the view. No client gets it: :meth:`Exchange.end` replaces it with the 404.
        self._blocked = HttpResponse(status=404)
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
        return not are_passing(_handler_of(self.get_response), "_exception_middleware")

    @cached_property
    def _is_before_cache(self) -> bool:
        """Whether a guard may answer before the cache is asked: every ``process_view`` is a known one."""
        return self.place == BEFORE_CACHE and are_passing(_handler_of(self.get_response), "_view_middleware")

    # Sync and async do the same. A request that no guard answers may be sent by the view of one that guards do, as by a
    # test client: it has no context.

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        before = contexts.get()
        if self._async:
            return self._aprobe(request) if before is PROBE else self._acall(request)
        if before is PROBE:
            return self._probed(request, self.get_response(request))
        exchange = Exchange(request) if request.method in registry.methods and conf.settings.is_enabled else None
        contexts.set(exchange)
        try:
            response: Any = None
            if exchange is not None and self._is_before_cache:
                seen = request.resolver_match, get_urlconf()
                if found := _resolve(request):
                    response = self._view(request, *found)
                if response is None:
                    _restore(request, *seen)
            if response is None:
                response = self.get_response(request)
        finally:
            contexts.set(before)
            if exchange is not None:
                exchange.is_over = True
        if exchange is None or (
            response.status_code != 404 and not (exchange.avoided or exchange.shadow or self._is_debug)
        ):
            return response  # type: ignore[no-any-return]
        for guard in exchange.guards_to_apply(response, self._asked):
            exchange.applies(guard)
        response = exchange.end(response, sets_etags=self._sets_etags, is_debug=self._is_debug)
        if exchange.guard is not None and request_blocked.receivers:
            send(request_blocked, type(exchange.guard), guard=exchange.guard, request=request)
        if exchange.shadow is not None:
            compare_status(*exchange.shadow, response.status_code)
        return response  # type: ignore[no-any-return]

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        before = contexts.get()
        exchange = Exchange(request) if request.method in registry.methods and conf.settings.is_enabled else None
        contexts.set(exchange)
        try:
            response: Any = None
            if exchange is not None:
                await _build_table(request)
                if self._is_before_cache:
                    seen = request.resolver_match, get_urlconf()
                    if found := _resolve(request):
                        response = await self._aview(request, *found)
                    if response is None:
                        _restore(request, *seen)
            if response is None:
                response = await self.get_response(request)
        finally:
            contexts.set(before)
            if exchange is not None:
                exchange.is_over = True
        if exchange is None or (
            response.status_code != 404 and not (exchange.avoided or exchange.shadow or self._is_debug)
        ):
            return response  # type: ignore[no-any-return]
        for guard in exchange.guards_to_apply(response, self._asked):
            await sync_to_async(exchange.applies)(guard)
        response = exchange.end(response, sets_etags=self._sets_etags, is_debug=self._is_debug)
        if exchange.guard is not None and request_blocked.receivers:
            await asend(request_blocked, type(exchange.guard), guard=exchange.guard, request=request)
        if exchange.shadow is not None:
            await in_a_thread(compare_status)(*exchange.shadow, response.status_code)  # it may read state rows
        return response  # type: ignore[no-any-return]

    async def _aprobe(self, request: HttpRequest) -> HttpResponseBase:
        return self._probed(request, await self.get_response(request))

    def _probed(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        exchange = Exchange(request)
        exchange.is_guarded = True
        return exchange.end(response, sets_etags=self._sets_etags, is_debug=False)

    # Called right before the view: ask the guards of its routes one by one. Never raises.

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        try:
            exchange: Any = contexts.get()
            if exchange is None or exchange.request is not request or exchange.is_over:
                return None
            for route in table_for(getattr(request, "urlconf", None)).by_view.get(id(view), ()):
                if route.guard in exchange.passed or (self._exceptions_are_answered and not route.guard.public):
                    continue
                value = route.asked(request, kwargs)
                if value is NO_ID:
                    continue
                # Hot path: without the call of `ask`, which begins with the short check.
                decision = route.guard._runtime.short(exchange.known, value) or exchange.ask(route.guard, value)
                if exchange.would_answer(route, value, kwargs, decision):
                    exchange.guard, exchange.response = route.guard, not_found(request, route)
                    return None if exchange.response is None else self._blocked
        except Exception as error:
            log_once.error(error, "bloomguard lets requests pass because of an internal error")
        return None

    async def _aview(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        try:
            exchange: Any = contexts.get()
            if exchange is None or exchange.request is not request or exchange.is_over:
                return None
            for route in table_for(getattr(request, "urlconf", None)).by_view.get(id(view), ()):
                if route.guard in exchange.passed or (self._exceptions_are_answered and not route.guard.public):
                    continue
                value = route.asked(request, kwargs)
                if value is NO_ID:
                    continue
                if exchange.would_answer(route, value, kwargs, await exchange.aask(route.guard, value)):
                    answer = sync_to_async(not_found, thread_sensitive=False)
                    exchange.guard, exchange.response = route.guard, await answer(request, route)
                    return None if exchange.response is None else self._blocked
        except Exception as error:
            log_once.error(error, "bloomguard lets requests pass because of an internal error")
        return None


def not_found(request: HttpRequest, route: GuardedRoute) -> HttpResponseBase | None:
    """Return the response of the site's ``handler404`` to the view's ``Http404``; ``None`` if the view has to run.

    It has to if the handler fails or answers what Django's cache keeps, or the host is not in ``ALLOWED_HOSTS``:
    the cache, also that of ``cache_page``, refuses it.
    The message is the view's own: a site's 404 page may show it. Not for an event loop: it may render a template.
    """
    shown = route.pattern.shown
    if shown is None:
        error = Http404(in_language(NO_ROW) % route.guard.model._meta.object_name)
    else:
        name = shown.model._meta.verbose_name
        error = Http404(gettext("No %(verbose_name)s found matching the query") % {"verbose_name": name})
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


async def _build_table(request: HttpRequest) -> None:
    """Build the table of routes in a thread, if it is not built yet: on a large site that takes seconds."""
    urlconf = getattr(request, "urlconf", None)
    if urlconf not in registry.plans.routes:
        with suppress(Exception):  # `_aview` meets the same error, and logs it
            await sync_to_async(table_for, thread_sensitive=False)(urlconf)


def _handler_of(get_response: Any) -> BaseHandler | None:
    """Return Django's handler, which calls the view at the end of the chain; ``None`` if it is not found."""
    for _ in range(_DEEPEST):
        owner = getattr(get_response, "__self__", None)
        if isinstance(owner, BaseHandler):
            return owner
        # Django wraps each middleware to convert its exceptions.
        get_response = getattr(get_response, "__wrapped__", None) or getattr(get_response, "get_response", None)
    return None


def _resolve(request: HttpRequest) -> tuple[Any, Any, dict[str, Any]] | None:
    """Return view and arguments of a request before the cache is queried, as Django finds them later. Never raises."""
    urlconf = getattr(request, "urlconf", None)
    try:
        if request.method not in ("GET", "HEAD"):
            return None  # CsrfViewMiddleware has not checked it yet
        table = table_for(urlconf)
        if not table.open or request.path_info.startswith(table.read_by_project):
            return None  # Django would not have the path read, if the cache has the page
        # As FetchFromCacheMiddleware does without a page: a middleware may turn the 404 into one that the cache keeps.
        request._cache_update_cache = True  # type: ignore[attr-defined]
        if urlconf is not None:
            set_urlconf(urlconf)
        match = request.resolver_match = get_resolver(urlconf).resolve(request.path_info)
    except Exception:  # Django resolves the path again and raises it again
        return None
    return match.func, match.args, match.kwargs


def _restore(request: HttpRequest, match: ResolverMatch | None, urlconf: Any) -> None:
    """Undo :func:`_resolve`: Django does the same again, but not if the cache has the page."""
    request.resolver_match = match
    set_urlconf(urlconf)


def _sets_plain_etags(classes: list[Any]) -> bool:
    """Whether ``ConditionalGetMiddleware`` sets ETags, from bodies that ``GZipMiddleware`` has not compressed."""
    for place, each in enumerate(classes):
        if isinstance(each, type) and issubclass(each, ConditionalGetMiddleware):
            return GZipMiddleware not in classes[place + 1 :]
    return False
