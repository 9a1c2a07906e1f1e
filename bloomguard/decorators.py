"""The guard of one view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from .guards import Guard, registry
from .responses import not_found
from .verdicts import Decision, Verdict

View = TypeVar("View", bound=Callable[..., Any])


def guarded(name: str, *, arg: str | Mapping[str, str] | None = None) -> Callable[[View], View]:
    """Answer 404 before the view runs where the guard ``name`` knows that the ID does not exist.

    ``arg`` is the view's keyword argument with the ID, or for several fields ``{"field": "argument"}``; where it is
    not given, it is found from the guard's lookup. Works on sync and async views, for the guard's methods alone.
    """

    def value(guard: Guard, kwargs: Mapping[str, Any]) -> Any:
        if isinstance(arg, str):
            return kwargs[arg]
        if arg is not None:
            return tuple(kwargs[arg[field.name]] for field in guard.fields)
        names = guard.kwargs_for(name, kwargs)
        return kwargs[names[0]] if len(names) == 1 else tuple(kwargs[found] for found in names)

    def is_absent(decision: Decision | None, guard: Guard, request: HttpRequest) -> bool:
        return decision is not None and decision.verdict is Verdict.ABSENT and guard.applies(request)

    def decorate(view: View) -> View:
        if iscoroutinefunction(view):

            @wraps(view)
            async def aguard(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                guard = registry[name]
                if request.method in guard.methods:
                    wanted = value(guard, kwargs)
                    decision = guard.decide_now(wanted)
                    if decision is None:
                        decision = await sync_to_async(guard.decide, thread_sensitive=False)(wanted)
                    if is_absent(decision, guard, request):
                        return await sync_to_async(not_found, thread_sensitive=False)(request, name)
                return await view(request, *args, **kwargs)

            return cast(View, aguard)

        @wraps(view)
        def guard_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            guard = registry[name]
            if request.method in guard.methods and is_absent(guard.decide(value(guard, kwargs)), guard, request):
                return not_found(request, name)
            return view(request, *args, **kwargs)

        return cast(View, guard_view)

    return decorate
