"""Whether every guard can work as it is declared: its model, lookup, sizes, store and routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register
from django.db import models

from .. import conf
from ..building.refusals import declared
from ..exceptions import ConfigurationError
from ..filters import InvalidShape
from ..filters.sizing import check_capacity, check_error_rate
from ..guards import AUTO, Guard, registry
from ..keys import kind_of
from ..routes.patterns import patterns
from ..routes.table import guarded_routes
from .collations import equality
from .tags import TAG

SYNCS = ("statements", "signals")
MODES = ("enforce", "shadow")
KINDS = ("auto", "bloom", "bitmap", "cuckoo")


@register(TAG)
def check_guards(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Every guard's model, lookup, store, sizes and routes."""
    messages = [message for guard in registry for message in _guard(guard)]
    for guard in registry.clashes:
        messages.append(
            Error(
                f"{type(guard).__module__}.{type(guard).__name__}: the name {guard.name!r} is another guard's already.",
                hint="Give one of them a name of its own: name = ...",
                obj=registry[guard.name].model,
                id="bloomguard.E007",
            )
        )
    return messages


def _guard(guard: Guard) -> Iterator[CheckMessage]:
    def error(number: int, text: str, hint: str) -> Error:
        return Error(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=f"bloomguard.E{number:03}")

    try:
        fields = guard.fields
    except ConfigurationError as problem:
        names = [field.name for field in guard.model._meta.concrete_fields]
        yield error(1, str(problem), f"lookup is {guard.lookup!r}; the model has {', '.join(names)}.")
        return
    for field in fields:
        if kind_of(field) is None:
            yield error(
                5,
                f"{field.name!r} is a {type(field).__name__}, which cannot be a key",
                "Look rows up by an integer, UUID, text, decimal or date field.",
            )
            return
        yield from equality(guard, field, error)
    with suppress(ConfigurationError):  # which is E009
        if guard.store not in conf.settings.stores:
            yield error(
                3,
                f"there is no store {guard.store!r}",
                f"BLOOMGUARD['STORES'] has {', '.join(sorted(conf.settings.stores)) or 'none'}.",
            )
    try:
        check_error_rate(guard.error_rate)
        if guard.capacity is not None:
            check_capacity(guard.capacity)
    except InvalidShape as problem:
        yield error(4, str(problem), "Remove the line to take the default.")
    if guard.filter not in KINDS or (guard.filter == "bitmap" and guard.keys.width != 8):
        yield error(
            11,
            f"filter is {guard.filter!r}",
            f"Take one of {', '.join(KINDS)}; a bitmap holds integers and dates alone.",
        )
    if guard.sync not in SYNCS:
        yield error(12, f"sync is {guard.sync!r}", f"Take one of {', '.join(SYNCS)}.")
    if guard.mode not in MODES:
        yield error(
            14, f"mode is {guard.mode!r}, so every request passes", f"Take one of {', '.join(map(repr, MODES))}."
        )
    if guard.sync == "signals":
        yield Warning(
            f"the guard {guard.name!r} follows signals alone: bulk_create, QuerySet.update, "
            "raw SQL and migrations write past it, and under autocommit a row is seen before its filter has it.",
            hint='Remove sync = "signals" where you can; else run rebuild_filter after such writes.',
            obj=guard.model,
            id="bloomguard.W005",
        )
    for refusal in declared(guard):
        yield Error(f"the guard {guard.name!r}: {refusal.reason}.", hint=refusal.cure, obj=guard.model, id=refusal.id)
    yield from _routes(guard, error)
    yield from _uniqueness(guard, fields)


def _routes(guard: Guard, error: Any) -> Iterator[CheckMessage]:
    if guard.routes == AUTO:
        if not guarded_routes(guard):
            yield Warning(
                f"the guard {guard.name!r}: routes = {AUTO!r} finds no URL pattern.",
                hint="manage.py guard_routes tells of each pattern why. Name the routes, or guard views one by one.",
                obj=guard.model,
                id="bloomguard.W010",
            )
        return
    if isinstance(guard.routes, str):
        yield error(2, f"routes is the text {guard.routes!r}, not a list", f"Write routes = [{guard.routes!r}].")
        return
    try:
        guarded_routes(guard)
    except ConfigurationError as problem:
        names = sorted({pattern.view_name for pattern in patterns() if pattern.is_named})
        near = [match for route in guard.routes for match in get_close_matches(route, names)]
        yield error(
            2,
            str(problem),
            f"Did you mean {' or '.join(map(repr, near))}?"
            if near and near[0] not in guard.routes
            else "Name the kwarg, as in routes = {'route': 'kwarg'}."
            if near
            else f"Named patterns are {', '.join(names[:20]) or 'none'}.",
        )


def _uniqueness(guard: Guard, fields: tuple[models.Field[Any, Any], ...]) -> Iterator[CheckMessage]:
    if any(field.null for field in fields):
        yield Warning(
            f"the guard {guard.name!r}: {', '.join(field.name for field in fields if field.null)} may be NULL.",
            hint="Rows without a value are in no filter; a view that finds them by another way is not affected.",
            obj=guard.model,
            id="bloomguard.W001",
        )
