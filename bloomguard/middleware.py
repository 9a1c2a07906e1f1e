"""The guard of a whole site: put it after ``SecurityMiddleware`` and before anything that looks up or caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase

from .guards import Guard
from .responses import not_found
from .routes import absent

GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class BloomGuardMiddleware:
    """Answers 404 for a guarded route whose ID certainly does not exist; everything else goes on as it came."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._async = iscoroutinefunction(get_response)
        if self._async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._async:
            return self._acall(request)
        guard = absent(request, Guard.decide)
        return self.get_response(request) if not isinstance(guard, Guard) else not_found(request, guard.name)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        # Nearly always answered from memory; only where the state rows have to be read does a thread do that.
        guard = absent(request, Guard.decide_now)
        if guard is False:
            guard = await sync_to_async(absent, thread_sensitive=False)(request, Guard.decide)
        if isinstance(guard, Guard):
            return await sync_to_async(not_found, thread_sensitive=False)(request, guard.name)
        response: HttpResponseBase = await self.get_response(request)  # type: ignore[misc]
        return response
