"""Find the captured kwargs of a route that carry the values of a guard's lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import models

from ..exceptions import ConfigurationError
from ..guards import Guard


def kwargs_for(guard: Guard, route: str, captured: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the ``captured`` kwargs with the lookup's values, in the order of the lookup's fields.

    Raises :class:`ConfigurationError` if a field has no such kwarg.
    """
    captured = list(captured)
    named = guard.routes.get(route, {}) if isinstance(guard.routes, Mapping) else {}
    if isinstance(named, str):
        named = {guard._meta.fields[0].name: named}
    chosen = []
    for field in guard._meta.fields:
        wanted = [named[field.name]] if field.name in named else _usual_kwargs(guard, field)
        kwarg = next((name for name in wanted if name in captured), None)
        if kwarg is None:
            raise ConfigurationError(
                f"route {route!r} captures {', '.join(captured) or 'nothing'}; expected {' or '.join(wanted)}"
            )
        chosen.append(kwarg)
    return tuple(chosen)


def kwargs_of_arg(guard: Guard, arg: str | Mapping[str, str]) -> tuple[str, ...]:
    """Return the view's arguments that ``@guarded(arg=...)`` names, in the order of the lookup's fields.

    Raises :class:`ConfigurationError` if a field has none.
    """
    named = {guard._meta.fields[0].name: arg} if isinstance(arg, str) else arg
    if missing := [field.name for field in guard._meta.fields if field.name not in named]:
        raise ConfigurationError(f"@guarded({guard.name!r}): arg is {arg!r}; add the arguments for {missing}")
    return tuple(named[field.name] for field in guard._meta.fields)


def _usual_kwargs(guard: Guard, field: models.Field[Any, Any]) -> list[str]:
    names = [field.name, field.attname]
    if len(guard._meta.fields) == 1 and (field.primary_key or field is guard.model._meta.pk):
        model_name = guard.model._meta.model_name
        names = ["pk", *names, f"{model_name}_pk", f"{model_name}_id"]
    return list(dict.fromkeys(names))
