"""Find the kwargs of a URL pattern, or the arguments of a view, that carry the values of a guard's lookup."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import models

from ..exceptions import ConfigurationError
from ..guards import Guard


class UnclearKwargs(ConfigurationError):
    """The kwarg with the ID has to be named: several may carry it, or ``arg`` leaves out a field."""


def kwargs_for(guard: Guard, route: str, captured: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the ``captured`` kwargs with the lookup's values, in the order of the lookup's fields.

    Raises :class:`ConfigurationError` if a field has no such kwarg, or if ``routes`` names another field, and
    :class:`UnclearKwargs` if a field has several.
    """
    captured = tuple(dict.fromkeys(captured))
    where = route if route.startswith("@") else f"route {route!r}"
    named = guard.routes.get(route, {}) if isinstance(guard.routes, Mapping) else {}
    if isinstance(named, str):
        named = {guard._meta.fields[0].name: named}
    names = [field.name for field in guard._meta.fields]
    if odd := set(named).difference(names):
        raise ConfigurationError(
            f"routes names the field {min(odd)!r} for {route!r}, which is not in lookup; the fields are "
            f"{', '.join(names)}"
        )
    chosen = []
    for field in guard._meta.fields:
        wanted, similar = ([named[field.name]], []) if field.name in named else _usual_kwargs(guard, field)
        found = [name for name in captured if name in wanted]
        if not found:
            raise ConfigurationError(
                f"{where} captures {', '.join(captured) or 'nothing'}; expected {' or '.join(wanted)}"
            )
        if others := [name for name in captured if name in (*wanted, *similar) and name != found[0]]:
            raise UnclearKwargs(
                f"{where} captures {' and '.join((found[0], *others))}, and each may be the {field.name} of "
                f"{guard.model._meta.label}"
            )
        chosen.append(found[0])
    return tuple(chosen)


def kwargs_of_view(
    guard: Guard, view: Any, captured: Iterable[str], arg: str | Mapping[str, str] | None
) -> tuple[str, ...]:
    """Return the arguments of ``view``, under ``@guarded(arg=...)``, with the values of the lookup's fields.

    Raises as :func:`kwargs_for` does, and :class:`UnclearKwargs` if ``arg`` has none for a field.
    """
    if arg is None:
        arguments = [name for name in inspect.signature(view).parameters if name != "request"]
        return kwargs_for(guard, f"@guarded({guard.name!r})", (*captured, *arguments))
    named = {guard._meta.fields[0].name: arg} if isinstance(arg, str) else arg
    if missing := [field.name for field in guard._meta.fields if field.name not in named]:
        raise UnclearKwargs(f"@guarded({guard.name!r}): arg is {arg!r}; add the arguments for {missing}")
    return tuple(named[field.name] for field in guard._meta.fields)


def _usual_kwargs(guard: Guard, field: models.Field[Any, Any]) -> tuple[list[str], list[str]]:
    """Return the names of kwargs that usually carry ``field``, and of those that may carry it beside one of them."""
    model_name = str(guard.model._meta.model_name)
    names, similar = [field.name, field.attname], [f"{model_name}_{field.name}"]
    if len(guard._meta.fields) == 1:
        similar.append(model_name)  # beside other fields of the guard, it may be the name of one of them
        if field.primary_key or field is guard.model._meta.pk:
            names = ["pk", *names, f"{model_name}_pk", f"{model_name}_id"]
    return list(dict.fromkeys(names)), similar
