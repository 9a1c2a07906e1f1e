"""The guard of a whole site: put it after ``SecurityMiddleware`` and before anything that looks up or caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from .answers.learning import is_worth_learning, learn_from
from .answers.responses import not_found, not_found_now
from .answers.shadow import Shadow
from .counting.outcomes import ablocked, blocked, settle
from .door.page import probing
from .guards import Guard
from .routes import Decide, GuardedRoute, absent, absent_in_view
from .routing.awaiting import awaited
from .routing.telling import noting, tell

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class BloomGuardMiddleware:
    """Answers 404 for a guarded route whose ID certainly does not exist; everything else goes on as it came."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._async = iscoroutinefunction(get_response)
        self._tells = settings.DEBUG
        self.process_view: Callable[..., Any] = self._aview if self._async else self._view
        if self._async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if probing.get():  # the door wants the site's own answer
            return self.get_response(request)
        if self._async:
            return self._acall(request)
        tells = self._tells
        guard = absent(request, noting(request, Guard.decide) if tells else Guard.decide, quickly=not tells)
        response: HttpResponseBase
        if isinstance(guard, Guard):
            blocked(guard, request)
            response = not_found(request, guard.name)
        else:
            response = self.get_response(request)  # type: ignore[assignment]
            if response.status_code == 404:
                if by_view := settle(request):
                    blocked(by_view, request)
                learn_from(request)
            if isinstance(guard, Shadow):
                guard.compare(response.status_code)
        return tell(request, response) if self._tells else response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        # Nearly always answered from memory. A store on a server is awaited, and the state rows are read in a thread.
        guard = absent(request, self._noting(request, Guard.decide_now), quickly=not self._tells)
        if guard is False:
            guard = await awaited(lambda decide: absent(request, self._noting(request, decide)))
        response: HttpResponseBase
        if isinstance(guard, Guard):
            await ablocked(guard, request)
            response = await _anot_found(request, guard.name)
        else:
            response = await self.get_response(request)  # type: ignore[misc]
            if response.status_code == 404:
                if by_view := settle(request):
                    await ablocked(by_view, request)
                if is_worth_learning(request):
                    await sync_to_async(learn_from)(request)
            if isinstance(guard, Shadow):
                await sync_to_async(guard.compare, thread_sensitive=False)(response.status_code)
        return tell(request, response) if self._tells else response

    def _noting(self, request: HttpRequest, decide: Decide) -> Decide:
        return noting(request, decide) if self._tells else decide

    # By now it is known who asks and which view it is: for views that demand a login, or make their own 404.

    def _view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        route = absent_in_view(request, view, kwargs, noting(request, Guard.decide) if self._tells else Guard.decide)
        if not isinstance(route, GuardedRoute):
            return None
        if route.needs_login and not (hasattr(request, "user") and request.user.is_authenticated):
            return None
        request.bloomguard_absent = route  # type: ignore[attr-defined]
        if route.by_view:
            response: HttpResponseBase = route.spared(request, *args, **kwargs)
            return response
        return not_found(request, route.guard.name)

    async def _aview(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        route = absent_in_view(request, view, kwargs, self._noting(request, Guard.decide_now))
        if route is False:
            route = await awaited(lambda decide: absent_in_view(request, view, kwargs, self._noting(request, decide)))
        if not isinstance(route, GuardedRoute):
            return None
        if route.needs_login and not (hasattr(request, "auser") and (await request.auser()).is_authenticated):
            return None
        request.bloomguard_absent = route  # type: ignore[attr-defined]
        if route.by_view:
            spared = route.spared if iscoroutinefunction(route.spared) else sync_to_async(route.spared)
            response: HttpResponseBase = await spared(request, *args, **kwargs)
            return response
        return await _anot_found(request, route.guard.name)


async def _anot_found(request: HttpRequest, guard_name: str) -> HttpResponseBase:
    ready = not_found_now(request)
    return ready or await sync_to_async(not_found, thread_sensitive=False)(request, guard_name)
