"""A class-based view, run as it is but for its look-up, which finds nothing and asks the database nothing.

Whatever the view does before (permissions, throttles, a queryset of its own) and after (its own 404, in the client's
format) is its own code. The look-up is taken out only where the view turns out to look for what the guard was asked
for, among rows that the guard knows all of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.handlers.base import BaseHandler
from django.db.models import QuerySet

from ..guards import Guard
from ..lookups.querysets import covers


@dataclass(frozen=True)
class Lookup:
    """A view's look-up that ``guard`` can answer for; ``kwargs`` have the values, in the order of its fields."""

    guard: Guard
    kwargs: tuple[str, ...]
    by_view: bool


def spared(lookup: Lookup, callback: Any) -> Callable[..., Any]:
    """``callback``, a class-based view, with a look-up that finds nothing; in a transaction with ``ATOMIC_REQUESTS``.

    Raises :class:`RuntimeError` where Django does: for an async view with ``ATOMIC_REQUESTS``.
    """
    cls = getattr(callback, "view_class", None) or callback.cls
    mixin = _SparedRestView if hasattr(callback, "cls") else _SparedView
    made = type(cls.__name__, (mixin, cls), {"bloomguard_lookup": lookup, "__module__": cls.__module__})
    view: Any
    if actions := getattr(callback, "actions", None):
        view = made.as_view(actions, **callback.initkwargs)  # type: ignore[attr-defined]
    else:
        view = made.as_view(**getattr(callback, "view_initkwargs", {}))  # type: ignore[attr-defined]
    # Django does this to every view, but not to what a middleware calls.
    view._non_atomic_requests = getattr(callback, "_non_atomic_requests", set())
    atomic: Callable[..., Any] = BaseHandler().make_view_atomic(view)
    return atomic


class _Spared:
    bloomguard_lookup: Lookup
    kwargs: dict[str, Any]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._asked = kwargs[self.bloomguard_lookup.kwargs[0]]
        return super().dispatch(request, *args, **kwargs)  # type: ignore[misc]

    def _emptied(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        lookup = self.bloomguard_lookup
        is_asked = self.kwargs.get(lookup.kwargs[0]) == self._asked
        return queryset.none() if is_asked and covers(lookup.guard, queryset) else queryset


class _SparedView(_Spared):
    def get_object(self, queryset: QuerySet[Any] | None = None) -> Any:
        if queryset is None:
            queryset = self.get_queryset()  # type: ignore[attr-defined]
        return super().get_object(self._emptied(queryset))  # type: ignore[misc]


class _SparedRestView(_Spared):
    _is_looking_up = False

    def get_object(self) -> Any:
        self._is_looking_up = True
        try:
            return super().get_object()  # type: ignore[misc]
        finally:
            self._is_looking_up = False

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        queryset = super().filter_queryset(queryset)  # type: ignore[misc]
        return self._emptied(queryset) if self._is_looking_up else queryset
