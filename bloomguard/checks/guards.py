"""Checks of every guard: its model, lookup, sizes, store and routes, and its columns in the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register
from django.db import DatabaseError, connections, models, router

from .. import conf
from ..exceptions import ConfigurationError
from ..guards import AUTO, Guard, registry
from ..guards.fields import kind_of, own_conversions, value_field
from ..guards.scopes import SCHEMA, no_schema
from ..rebuild.columns import CURE, EXACT_COLLATIONS
from ..rebuild.refusals import SEVERAL_TABLES, database_refusals, declaration_refusals
from ..routes.patterns import patterns
from ..routes.table import guarded_routes

#: Databases whose catalogue shows whether a column compares different texts as equal; `check_columns` reads it.
_ASKED = ("postgresql", "sqlite", "mysql")


@register("bloomguard")
def check_guards(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check every guard's model, lookup, store, sizes and routes."""
    messages = [message for guard in registry for message in _guard(guard)]
    for guard in registry.clashes:
        messages.append(
            Warning(
                f"{type(guard).__module__}.{type(guard).__name__}: another guard already has the name {guard.name!r}.",
                hint="Give one of them another name: name = ...",
                obj=registry[guard.name].model,
                id="bloomguard.W107",
            )
        )
    return messages


def warn(guard: Guard, id: str, text: str, hint: str) -> Warning:
    """Return a warning about ``guard``."""
    return Warning(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=id)


def _guard(guard: Guard) -> Iterator[CheckMessage]:
    for mistake in guard._mistakes:
        yield warn(guard, mistake.id, mistake.reason, f"{mistake.cure}.")
    if any(mistake.decides_keys for mistake in guard._mistakes):
        return
    try:
        fields = guard._meta.fields
    except ConfigurationError as problem:
        names = [field.name for field in guard.model._meta.concrete_fields]
        hint = f"lookup is {guard.lookup!r}; the model has {', '.join(names)}."
        if "__" in str(guard.lookup):
            hint += " A key has columns of the model's own table, none across a relation."
        yield warn(guard, "bloomguard.W101", str(problem), hint)
        return
    for field in fields:
        if kind_of(field) is None:
            yield warn(
                guard,
                "bloomguard.W105",
                f"{field.name!r} is a {type(field).__name__}, which cannot be a key",
                "Look rows up by an integer, UUID, text, decimal or date field.",
            )
            return
        yield from _equality(guard, field)
    with suppress(ConfigurationError):  # reported as W109
        if guard.store not in conf.settings.stores:
            yield warn(
                guard,
                "bloomguard.W103",
                f"there is no store {guard.store!r}",
                f"BLOOMGUARD['STORES'] has {', '.join(sorted(conf.settings.stores)) or 'none'}.",
            )
    if guard.filter == "bitmap" and guard._meta.keys.width != 8:
        hint = "Set another one: a bitmap can only contain integers and dates, of a guard without a scope."
        yield warn(guard, "bloomguard.W111", "filter is 'bitmap'", hint)
    if guard.scope == SCHEMA and (why := no_schema(connections[router.db_for_write(guard.model)])):
        yield warn(guard, "bloomguard.W138", *why)
    elif guard.scope == SCHEMA and getattr(settings, "TENANT_LIMIT_SET_CALLS", False):
        yield warn(
            guard,
            "bloomguard.W138",
            "scope is 'schema', but with TENANT_LIMIT_SET_CALLS the search_path is set only before a request's first "
            "query, so all later ones pass",
            "Remove TENANT_LIMIT_SET_CALLS.",
        )
    if guard.sync == "signals":
        yield Warning(
            f"the guard {guard.name!r} tracks writes only by signals: bulk_create, QuerySet.update, raw SQL and "
            "migrations bypass it, and under autocommit a row is visible before its key is in the filter.",
            hint='Remove sync = "signals" if you can; otherwise run rebuild_filter after such writes.',
            obj=guard.model,
            id="bloomguard.W005",
        )
    for refusal in declaration_refusals(guard):
        yield warn(guard, refusal.id, refusal.reason, refusal.cure)
    yield from _routes(guard)
    if nullable := ", ".join(field.name for field in fields if field.null):
        yield warn(
            guard,
            "bloomguard.W001",
            f"{nullable} may be NULL",
            "The filter does not contain rows with NULL; views that find them by another lookup are not affected.",
        )


def _routes(guard: Guard) -> Iterator[CheckMessage]:
    if guard.routes == AUTO:
        if not guarded_routes(guard):
            yield warn(
                guard,
                "bloomguard.W010",
                f"routes = {AUTO!r} matches no URL pattern",
                "manage.py guard_routes shows why for each pattern. Name the routes, or put @guarded on views.",
            )
        return
    for route, named in guard.routes.items() if isinstance(guard.routes, Mapping) else ():
        if not isinstance(named, str) and (odd := set(named) - {field.name for field in guard._meta.fields}):
            yield warn(
                guard,
                "bloomguard.W102",
                f"routes names the field {min(odd)!r} for {route!r}, which is not in lookup",
                f"The fields are {', '.join(field.name for field in guard._meta.fields)}.",
            )
    try:
        guarded_routes(guard)
    except ConfigurationError as problem:
        names = sorted({pattern.view_name for pattern in patterns() if pattern.is_named})
        shared = [name for name in guard.routes if len([each for each in patterns() if each.view_name == name]) > 1]
        near = [match for route in guard.routes for match in get_close_matches(route, names)]
        yield warn(
            guard,
            "bloomguard.W102",
            str(problem),
            f"Did you mean {' or '.join(map(repr, near))}?"
            if near and near[0] not in guard.routes
            else "Give each pattern a name of its own, or remove the route: the guard answers at the lookup."
            if shared
            else "Name the kwarg, as in routes = {'route': 'kwarg'}."
            if near
            else f"The URLconf has {', '.join(names[:20])}."
            if names
            else "No URL pattern has a name: write path(..., name='...').",
        )


def _equality(guard: Guard, field: models.Field[Any, Any]) -> Iterator[CheckMessage]:
    """Report a field if the database may compare values as equal that have different keys."""
    if guard._meta.normalizes:
        return
    target = value_field(field)
    collation = getattr(target, "db_collation", None)
    vendor = connections[router.db_for_write(guard.model)].vendor
    if collation and collation not in EXACT_COLLATIONS:
        text = f"{field.name!r} has the collation {collation!r}, by which different texts may be equal"
        yield warn(guard, "bloomguard.W106", text, CURE)
    elif vendor not in _ASKED and kind_of(field) == "text":
        text = f"{field.name!r} is text in {vendor}, which may compare different texts as equal"
        yield warn(guard, "bloomguard.W106", text, CURE)
    if own := own_conversions(field):
        yield warn(
            guard,
            "bloomguard.W002",
            f"{field.name!r} is a {type(target).__name__}, whose {', '.join(own)} may store or compare another value "
            "than its to_python returns",
            "If so, let to_python return the stored value, or add normalize(self, value) to the guard.",
        )


@register("bloomguard", deploy=True)
def check_columns(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the tables in the database itself: raw SQL in a migration or manual changes may have altered them."""
    messages: list[CheckMessage] = []
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if databases is not None and alias not in databases:
            continue
        with suppress(ConfigurationError, DatabaseError):  # reported as W101, or as W034 for the state rows' database
            reported = {message.id for field in guard._meta.fields for message in _equality(guard, field)}
            messages += [
                warn(guard, refusal.id, refusal.reason, refusal.cure)
                for refusal in database_refusals(guard, connections[alias])
                if refusal.id not in reported and refusal.id != SEVERAL_TABLES  # of `check --database`
            ]
    return messages
