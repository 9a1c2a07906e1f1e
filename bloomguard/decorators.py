"""Guard one view: a function, or a method of a class-based view or viewset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import Http404

from .counting.outcomes import ablocked, blocked
from .door.page import probing
from .exceptions import ConfigurationError
from .guards import Guard, registry
from .log_once import LogOnce
from .lookups.scope import Scope, current
from .verdicts import Decision, Verdict

View = TypeVar("View", bound=Callable[..., Any])


def guarded(name: str, *, arg: str | Mapping[str, str] | None = None) -> Callable[[View], View]:
    """Raise ``Http404`` in place of a view's own code where the guard ``name`` knows that there is no such row.

    It stands where it is written among the view's decorators: what is above it runs first, and what answers an
    ``Http404`` of the view (the site's ``handler404``, REST framework) answers this one.

    ``arg`` is the view's keyword argument with the ID, or for several fields ``{"field": "argument"}``; without it, it
    is found from the guard's lookup. Works on sync and async functions and methods, for the guard's methods alone. A
    call without the argument, from a pattern that leaves it to the view's default, passes. Raises
    :class:`ConfigurationError` at once if the view has no argument ``arg``. A mistake that shows only when the view is
    called, such as a guard that does not exist, is logged once, and requests pass.
    """
    log = LogOnce()

    def decorate(view: View) -> View:
        if arg is not None:
            _check(view, (arg,) if isinstance(arg, str) else tuple(arg.values()))
        place = _place_of_request(view)

        @lru_cache
        def names(guard: Guard, given: tuple[str, ...]) -> tuple[str, ...]:
            return _names(guard, arg, given, view)

        def asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Guard, Any, Scope] | None:
            """The guard, the value and whom to ask through; ``None`` where there is nothing to ask."""
            if probing.get():  # the door wants the site's own answer
                return None
            try:
                guard, request = registry[name], args[place]
                if request.method not in guard.methods:
                    return None
                wanted = names(guard, tuple(kwargs))
                if not all(argument in kwargs for argument in wanted):
                    return None
                value = kwargs[wanted[0]] if len(wanted) == 1 else tuple(kwargs[argument] for argument in wanted)
                return guard, value, current() or Scope(getattr(request, "_request", request))
            except Exception as error:
                log.error(error, "bloomguard passes requests to a view guarded by %r because of an error", name)
                return None

        def is_absent(guard: Guard, scope: Scope, decision: Decision) -> bool:
            return decision.verdict is Verdict.ABSENT and scope.applies(guard)

        def is_counted(guard: Guard, scope: Scope) -> bool:
            """Whether the middleware counts the request, when it has its answer."""
            if scope is current():
                scope.spare(guard)
                return True
            return False

        def missing(guard: Guard) -> Http404:
            return Http404(f"No {guard.model._meta.object_name} matches the given query.")

        async def aanswer(question: tuple[Guard, Any, Scope], *args: Any, **kwargs: Any) -> Any:
            guard, value, scope = question
            if is_absent(guard, scope, await scope.adecide(guard, value)):
                if not is_counted(guard, scope):
                    await ablocked(guard, scope.request)
                raise missing(guard)
            return await view(*args, **kwargs)

        if iscoroutinefunction(view):

            @wraps(view)
            async def aguard(*args: Any, **kwargs: Any) -> Any:
                question = asked(args, kwargs)
                return await (view(*args, **kwargs) if question is None else aanswer(question, *args, **kwargs))

            return _mark(aguard, name, arg)  # type: ignore[no-any-return]

        @wraps(view)
        def guard_view(*args: Any, **kwargs: Any) -> Any:
            question = asked(args, kwargs)
            if question is None:
                return view(*args, **kwargs)
            if _is_awaited(view, args):
                return aanswer(question, *args, **kwargs)
            guard, value, scope = question
            if is_absent(guard, scope, scope.decide(guard, value)):
                if not is_counted(guard, scope):
                    blocked(guard, scope.request)
                raise missing(guard)
            return view(*args, **kwargs)

        return _mark(guard_view, name, arg)  # type: ignore[no-any-return]

    return decorate


def _mark(guarded_view: Any, name: str, arg: str | Mapping[str, str] | None) -> Any:
    """Leave a note for whoever walks through a URLconf. Decorators on top copy it."""
    guarded_view.guarded_by, guarded_view.guarded_arg = name, arg
    return guarded_view


def _place_of_request(view: Callable[..., Any]) -> int:
    """Which positional argument is the request: the second of a method, of which only the name ``self`` tells."""
    if isinstance(view, partial):
        return 0  # what `method_decorator` makes of a method
    return int(next(iter(_parameters(view)), "") == "self")


def _is_awaited(view: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the view is ``dispatch``, a plain method, of a class whose methods are async."""
    owner = getattr(view.func, "__self__", None) if isinstance(view, partial) else args[0]
    return bool(getattr(owner, "view_is_async", False))


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
