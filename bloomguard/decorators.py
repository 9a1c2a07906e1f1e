"""Guard one view with ``@guarded``: a function, or a method of a class-based view or viewset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import Http404

from .conf import settings
from .exceptions import ConfigurationError
from .guards import Guard, registry
from .guards.counters import ablocked, blocked
from .guards.fields import may_raise
from .guards.keys import unwrapped
from .lookups.context import PROBE, LookupContext, contexts
from .process import log_once
from .routes.table import kwargs_of_view
from .verdicts import Decision, Verdict

View = TypeVar("View", bound=Callable[..., Any])

#: Sets of argument names that a view remembers: one for each URL pattern, unless its caller takes them from users.
_MOST_CALLS = 128


def guarded(name: str, *, arg: str | Mapping[str, str] | None = None) -> Callable[[View], View]:
    """Raise ``Http404`` instead of calling the view if the filter of the guard ``name`` proves that the row is absent.

    Decorators above ``@guarded`` run first. The ``Http404`` is handled like one of the view: by the site's
    ``handler404``, or by REST framework.

    ``arg`` is the view's keyword argument with the ID, or for several fields ``{"field": "argument"}``; by default the
    guard's lookup determines it. If several arguments may be meant, requests pass, and ``manage.py check`` reports it.
    Works on sync and async functions and methods, and only for the HTTP methods of the guard. A call without the
    argument, because the URL pattern leaves it to the view's default, passes.

    Raises :class:`ConfigurationError` at once if the view has no argument ``arg``. An error that occurs only when the
    view is called, such as a guard that does not exist, is logged once, and requests pass.
    """

    def decorate(view: View) -> View:
        if arg is not None:
            _check(view, (arg,) if isinstance(arg, str) else tuple(arg.values()))
        place = _place_of_request(view)

        @lru_cache(maxsize=_MOST_CALLS)
        def names(guard: Guard, *given: str) -> tuple[str, ...]:
            return kwargs_of_view(guard, view, given, arg)

        def asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[LookupContext, Guard, Any] | None:
            """Return the request's context, the guard and the value; ``None`` if there is nothing to check."""
            context = contexts.get()
            if context is PROBE or not settings.is_enabled:
                return None
            try:
                guard, request = registry[name], args[place]
                if request.method not in guard.methods:
                    return None
                wanted = names(guard, *kwargs)
                try:
                    value = unwrapped(tuple(map(kwargs.__getitem__, wanted)))
                except KeyError:
                    return None
                # The middleware has not seen the request, or a block of guarded lookups, which has none, is open.
                if context is None or context.is_over or context.request is None:
                    known = None if context is None or context.is_over else context.known
                    context = LookupContext(getattr(request, "_request", request), known)
                return context, guard, value
            except Exception as error:
                log_once.error(error, "bloomguard passes requests to a view guarded by %r because of an error", name)
                return None

        def is_missing(context: LookupContext, guard: Guard, value: Any, decision: Decision, captured: Any) -> bool:
            """Return whether the row is absent, and the view's query would not raise an error instead."""
            return (
                decision.verdict is Verdict.ABSENT
                and not may_raise(guard, value, captured.values())
                and context.applies(guard)
            )

        async def aanswer(question: tuple[LookupContext, Guard, Any], *args: Any, **kwargs: Any) -> Any:
            context, guard, value = question
            if is_missing(context, guard, value, await context.aask(guard, value), kwargs):
                if context is contexts.get():
                    context.note_avoided(guard)  # the middleware counts the request
                else:
                    await ablocked(guard, context.request)
                raise _missing(guard)
            return await view(*args, **kwargs)

        @wraps(view)
        async def aguard_view(*args: Any, **kwargs: Any) -> Any:
            question = asked(args, kwargs)
            return await (view(*args, **kwargs) if question is None else aanswer(question, *args, **kwargs))

        @wraps(view)
        def guard_view(*args: Any, **kwargs: Any) -> Any:
            question = asked(args, kwargs)
            if question is None:
                return view(*args, **kwargs)
            if _is_awaited(view, args):
                return aanswer(question, *args, **kwargs)
            context, guard, value = question
            if is_missing(context, guard, value, context.ask(guard, value), kwargs):
                if context is contexts.get():
                    context.note_avoided(guard)
                else:
                    blocked(guard, context.request)
                raise _missing(guard)
            return view(*args, **kwargs)

        found: Any = aguard_view if iscoroutinefunction(view) else guard_view
        # For checks and `guard_routes`. Decorators above copy them.
        found.guarded_by, found.guarded_arg = name, arg
        return found  # type: ignore[no-any-return]

    return decorate


def _missing(guard: Guard) -> Http404:
    return Http404(f"No {guard.model._meta.object_name} matches the given query.")


def _place_of_request(view: Callable[..., Any]) -> int:
    """Return the position of the request argument: 1 for a method, which is recognized only by the name ``self``."""
    if isinstance(view, partial):
        return 0  # `method_decorator` binds a method as a partial
    return int(next(iter(inspect.signature(view).parameters), "") == "self")


def _is_awaited(view: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the view is the sync method ``dispatch`` of a class with async handlers."""
    owner = getattr(view.func, "__self__", None) if isinstance(view, partial) else args[0]
    return bool(getattr(owner, "view_is_async", False))


def _check(view: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    if isinstance(view, partial):
        return  # `method_decorator` creates it for each request
    parameters = inspect.signature(view).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for argument in arguments:
        if argument not in parameters and not takes_any:
            raise ConfigurationError(
                f"@guarded on {view.__qualname__}: it has no argument {argument!r}; it has {', '.join(parameters)}"
            )
