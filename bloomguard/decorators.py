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
from .lookups.context import NO_ROW, PROBE, LookupContext, contexts, in_language
from .process import log_once
from .routes.table import kwargs_of_view
from .state.verdicts import Verdict

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

    Raises :class:`ConfigurationError` at once if it is used without a name, or the view has no argument ``arg``. An
    error that occurs only when the view is called, such as a guard that does not exist, is logged once, and requests
    pass.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"@guarded was given {name!r}; it takes the name of a guard, as in @guarded('city')")

    def decorate(view: View) -> View:
        if arg is not None:
            _check(view, (arg,) if isinstance(arg, str) else tuple(arg.values()))
        call = _GuardedCall(view, name, arg)
        wrapper: Any  # a function, which a class can bind as its method

        if iscoroutinefunction(view):

            @wraps(view)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                question = call.question(args, kwargs)
                return await (view(*args, **kwargs) if question is None else call.aanswer(question, args, kwargs))
        else:

            @wraps(view)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                question = call.question(args, kwargs)
                return view(*args, **kwargs) if question is None else call.answer(question, args, kwargs)

        # For checks and `guard_routes`. Decorators above copy them.
        wrapper.guarded_by, wrapper.guarded_arg = name, arg
        return wrapper  # type: ignore[no-any-return]

    return decorate


#: What a call asks: the request's context, the guard, and the value of its lookup.
_Question = tuple[LookupContext, Guard, Any]


class _GuardedCall:
    """What a call of a view under ``@guarded`` asks, and its answer: ``Http404``, or that of the view."""

    def __init__(self, view: Callable[..., Any], name: str, arg: str | Mapping[str, str] | None) -> None:
        self.view, self.name, self.place = view, name, _place_of_request(view)
        self.names = lru_cache(_MOST_CALLS)(lambda guard, given: kwargs_of_view(guard, view, given, arg))

    def question(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Question | None:
        """Return what this call asks; ``None`` if there is nothing to check."""
        context = contexts.get()
        if context is PROBE or not settings.is_enabled:
            return None
        try:
            guard, request = registry[self.name], args[self.place]
            if request.method not in guard.methods:
                return None
            names = self.names(guard, tuple(kwargs))
            try:
                value = unwrapped(tuple(map(kwargs.__getitem__, names)))
            except KeyError:
                return None
            # The middleware has not seen the request, or a block of guarded lookups, which has none, is open.
            if context is None or context.is_over or context.request is None:
                known = None if context is None or context.is_over else context.known
                context = LookupContext(getattr(request, "_request", request), known)
            return context, guard, value
        except Exception as error:
            log_once.error(error, "bloomguard passes requests to a view guarded by %r because of an error", self.name)
            return None

    def answer(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_awaited(self.view, args):
            return self.aanswer(question, args, kwargs)
        context, guard, value = question
        if context.ask(guard, value).verdict is Verdict.ABSENT and _may_answer(question, kwargs):
            if context is contexts.get():
                context.note_avoided(guard)  # the middleware counts the request
            else:
                blocked(guard, context.request)
            raise _http404(guard)
        return self.view(*args, **kwargs)

    async def aanswer(self, question: _Question, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do :meth:`answer` without blocking the event loop."""
        context, guard, value = question
        if (await context.aask(guard, value)).verdict is Verdict.ABSENT and _may_answer(question, kwargs):
            if context is contexts.get():
                context.note_avoided(guard)
            else:
                await ablocked(guard, context.request)
            raise _http404(guard)
        return await self.view(*args, **kwargs)


def _may_answer(question: _Question, kwargs: dict[str, Any]) -> bool:
    """Return whether a 404 is what the view would answer for an absent row, and the guard applies to the request."""
    context, guard, value = question
    return not may_raise(guard, value, kwargs.values()) and context.applies(guard)


def _http404(guard: Guard) -> Http404:
    return Http404(in_language(NO_ROW) % guard.model._meta.object_name)


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
