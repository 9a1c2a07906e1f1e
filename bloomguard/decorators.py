"""The guard of one view: a function, or a method of a class-based view or viewset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.http import Http404, HttpRequest

from .answers.responses import not_found, not_found_by_framework
from .complaints import Complaints
from .counting.counts import FALSE_POSITIVE
from .counting.outcomes import blocked, is_remembered
from .exceptions import ConfigurationError
from .guards import Guard, registry
from .routing.telling import note, tell
from .verdicts import MAYBE, Decision, Verdict

View = TypeVar("View", bound=Callable[..., Any])
#: Who is asked, for which value, for which request: Django's, or REST framework's.
Found = tuple[Guard, Any, Any]


def guarded(name: str, *, arg: str | Mapping[str, str] | None = None) -> Callable[[View], View]:
    """Answer 404 before the view runs where the guard ``name`` knows that the ID does not exist.

    ``arg`` is the view's keyword argument with the ID, or for several fields ``{"field": "argument"}``; where it is
    not given, it is found from the guard's lookup. Works on sync and async functions and methods, for the guard's
    methods alone. A call without the argument, from a pattern that leaves it to the view's default, passes. Raises
    :class:`ConfigurationError` at once if the view has no argument ``arg``. A mistake that shows only when the view is
    called, such as a guard that there is not, is logged once, and requests pass.
    """
    complaints = Complaints()

    def failed(error: Exception) -> None:
        complaints.say(error, "bloomguard passes requests to a view guarded by %r because of an error", name)

    def mark(view: Callable[..., Any]) -> Any:
        # For who walks through a URLconf. Decorators on top copy all three, but are not the view named here.
        view.guarded_by, view.guarded_arg, view.guarded_view = name, arg, view  # type: ignore[attr-defined]
        return view

    def decorate(view: View) -> View:
        if arg is not None:
            _check(view, (arg,) if isinstance(arg, str) else tuple(arg.values()))
        place = _place_of_request(view)

        @lru_cache
        def names(guard: Guard, given: tuple[str, ...]) -> tuple[str, ...]:
            return _names(guard, arg, given, view)

        def asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Found | None:
            try:
                guard, request = registry[name], args[place]
                if request.method not in guard.methods:
                    return None
                wanted = names(guard, tuple(kwargs))
                if not all(argument in kwargs for argument in wanted):
                    return None
                value = kwargs[wanted[0]] if len(wanted) == 1 else [kwargs[argument] for argument in wanted]
                return guard, value, request
            except Exception as error:
                failed(error)
                return None

        def missed(decision: Decision, guard: Guard, request: Any) -> None:
            if decision is MAYBE and not is_remembered(request):
                guard.tallies[FALSE_POSITIVE]()

        def is_absent(decision: Decision, guard: Guard, request: Any) -> bool:
            try:
                return decision.verdict is Verdict.ABSENT and guard.applies(request)
            except Exception as error:
                failed(error)
                return False

        async def answer(found: Found, *args: Any, **kwargs: Any) -> Any:
            guard, value, request = found
            decision = await guard.adecide(value)
            is_refused = is_absent(decision, guard, request)
            try:
                if is_refused:
                    response = await sync_to_async(_refuse, thread_sensitive=False)(request, guard)
                else:
                    response = await _aask(view, guard, value, *args, **kwargs)
            except Http404:
                missed(decision, guard, request)
                raise
            return _told(response, guard, request, decision) if settings.DEBUG else response

        if iscoroutinefunction(view):

            @wraps(view)
            async def aguard(*args: Any, **kwargs: Any) -> Any:
                found = asked(args, kwargs)
                return await (answer(found, *args, **kwargs) if found else view(*args, **kwargs))

            return mark(aguard)  # type: ignore[no-any-return]

        @wraps(view)
        def guard_view(*args: Any, **kwargs: Any) -> Any:
            found = asked(args, kwargs)
            if found is None:
                return view(*args, **kwargs)
            if _is_awaited(view, args):
                return answer(found, *args, **kwargs)
            guard, value, request = found
            decision = guard.decide(value)
            is_refused = is_absent(decision, guard, request)
            try:
                response = _refuse(request, guard) if is_refused else _ask(view, guard, value, *args, **kwargs)
            except Http404:
                missed(decision, guard, request)
                raise
            return _told(response, guard, request, decision) if settings.DEBUG else response

        return mark(guard_view)  # type: ignore[no-any-return]

    return decorate


def _ask(view: Callable[..., Any], guard: Guard, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The view's answer, from which the guard learns if it is 404."""
    try:
        answer = view(*args, **kwargs)
    except Exception as error:
        if _says_404(error):
            guard.confirm_missing(value)
        raise
    if _says_404(answer):
        guard.confirm_missing(value)
    return answer


async def _aask(view: Callable[..., Any], guard: Guard, value: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        answer = await view(*args, **kwargs)
    except Exception as error:
        if _says_404(error):
            await sync_to_async(guard.confirm_missing)(value)
        raise
    if _says_404(answer):
        await sync_to_async(guard.confirm_missing)(value)
    return answer


def _says_404(answer: Any) -> bool:
    """Of a response, or of an exception: Django's, or one of REST framework's."""
    return isinstance(answer, Http404) or getattr(answer, "status_code", None) == 404


def _refuse(request: Any, guard: Guard) -> Any:
    blocked(guard, request)
    if isinstance(request, HttpRequest):
        return not_found(request, guard.name)
    return not_found_by_framework(request, guard.name)


def _told(response: Any, guard: Guard, request: Any, decision: Decision) -> Any:
    note(request, guard, decision)
    return tell(request, response)


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
