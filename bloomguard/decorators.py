"""The guard of one view."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from .exceptions import ConfigurationError
from .guards import Guard, registry
from .responses import not_found
from .verdicts import Decision, Verdict

logger = logging.getLogger("bloomguard")

View = TypeVar("View", bound=Callable[..., Any])


def guarded(name: str, *, arg: str | Mapping[str, str] | None = None) -> Callable[[View], View]:
    """Answer 404 before the view runs where the guard ``name`` knows that the ID does not exist.

    ``arg`` is the view's keyword argument with the ID, or for several fields ``{"field": "argument"}``; where it is
    not given, it is found from the guard's lookup. Works on sync and async views, for the guard's methods alone. A call
    without the argument, from a pattern that leaves it to the view's default, passes. Raises
    :class:`ConfigurationError` if the view has no such argument, or, when it is called, if there is no such guard.
    """

    def is_absent(decision: Decision | None, guard: Guard, request: HttpRequest) -> bool:
        try:
            return decision is not None and decision.verdict is Verdict.ABSENT and guard.applies(request)
        except Exception:
            logger.exception("bloomguard passes a request to %s because of an error of its own", name)
            return False

    def decorate(view: View) -> View:
        if arg is not None:
            _check(view, (arg,) if isinstance(arg, str) else tuple(arg.values()))

        @lru_cache
        def names(guard: Guard, given: tuple[str, ...]) -> tuple[str, ...]:
            return _names(guard, arg, given, view)

        def asked(request: HttpRequest, kwargs: Mapping[str, Any]) -> tuple[Guard, Any] | None:
            guard = registry[name]
            if request.method not in guard.methods:
                return None
            wanted = names(guard, tuple(kwargs))
            if not all(argument in kwargs for argument in wanted):
                return None
            return guard, kwargs[wanted[0]] if len(wanted) == 1 else [kwargs[argument] for argument in wanted]

        if iscoroutinefunction(view):

            @wraps(view)
            async def aguard(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                if found := asked(request, kwargs):
                    guard, value = found
                    decision = guard.decide_now(value)
                    if decision is None:
                        decision = await sync_to_async(guard.decide, thread_sensitive=False)(value)
                    if is_absent(decision, guard, request):
                        return await sync_to_async(not_found, thread_sensitive=False)(request, name)
                return await view(request, *args, **kwargs)

            return cast(View, aguard)

        @wraps(view)
        def guard_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if found := asked(request, kwargs):
                guard, value = found
                if is_absent(guard.decide(value), guard, request):
                    return not_found(request, name)
            return view(request, *args, **kwargs)

        return cast(View, guard_view)

    return decorate


def _names(
    guard: Guard, arg: str | Mapping[str, str] | None, given: tuple[str, ...], view: Callable[..., Any]
) -> tuple[str, ...]:
    """The view's arguments with the ID, in the order of the guard's fields; raises :class:`ConfigurationError`."""
    if arg is None:
        return guard.kwargs_for(f"@guarded({guard.name!r})", (*given, *_parameters(view)))
    named = {guard.fields[0].name: arg} if isinstance(arg, str) else arg
    if missing := [field.name for field in guard.fields if field.name not in named]:
        raise ConfigurationError(f"@guarded({guard.name!r}): arg is {arg!r}; it has to say where {missing} are")
    return tuple(named[field.name] for field in guard.fields)


def _parameters(view: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(view).parameters)


def _check(view: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    if isinstance(view, partial):
        return  # what method_decorator makes of a method, anew for each request
    parameters = inspect.signature(view).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for argument in arguments:
        if argument not in parameters and not takes_any:
            raise ConfigurationError(
                f"@guarded on {view.__qualname__}: it has no argument {argument!r}; it has {', '.join(parameters)}"
            )
