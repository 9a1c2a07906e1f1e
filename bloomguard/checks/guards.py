"""Checks of every guard: the names of its options, its model, lookup, sizes, store and routes, and its registration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Warning, register
from django.db import connections, models

from .. import conf
from ..exceptions import ConfigurationError
from ..guards import AUTO, Guard, registry
from ..guards.fields import kind_of, own_conversions, value_field
from ..guards.scopes import SCHEMA, no_schema
from ..rebuild.refusals import CURE, EXACT_COLLATIONS, declaration_refusals
from ..routes.openness import is_admin
from ..routes.patterns import patterns_named
from ..routes.table import guarded_routes, table_for

OPTIONS = tuple(name for name in Guard.__annotations__ if hasattr(Guard, name) and not name.startswith("_"))
#: Names that other libraries have for an option.
_OTHER_NAMES = {
    **dict.fromkeys(["route", "url_names"], "routes"),
    **dict.fromkeys(["fp_rate", "false_positive_rate"], "error_rate"),
    **dict.fromkeys(["size", "max_elements"], "capacity"),
    **dict.fromkeys(["field", "fields", "lookup_field"], "lookup"),
    **dict.fromkeys(["kind", "filter_type"], "filter"),
    "condition": "alive",
}


@register("bloomguard")
def check_guards(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check every guard's model, lookup, store, sizes and routes, and the names of its options."""
    for guard in registry:
        yield from _guard(guard)
        yield from _misspelt(guard)
    for guard in registry.clashes:
        if guard._mistakes:  # it may have this name only because its own cannot be used
            yield from _guard(guard)
            continue
        text = f"{type(guard).__module__}.{type(guard).__name__}: another guard already has the name {guard.name!r}."
        hint = "Give one of them another name: name = ..."
        yield Warning(text, hint=hint, obj=guard.model, id="bloomguard.W107")


def warn(guard: Guard, id: str, text: str, hint: str) -> Warning:
    """Return a warning about ``guard``."""
    text = text.rstrip(".")  # a driver's own may end so
    return Warning(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=id)


def alias_of(guard: Guard) -> str:
    """Return the database of the guard's rows; empty if the routers name none that exists: reported as W142."""
    try:
        alias = guard._meta.database
        connections[alias]
    except Exception:
        return ""
    return alias


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
            text = f"{field.name!r} is a {type(field).__name__}, which cannot be a key"
            yield warn(guard, "bloomguard.W105", text, "Look rows up by an integer, UUID, text, decimal or date field.")
            return
        yield from equality(guard, field)
    with suppress(ConfigurationError):  # reported as W109
        if guard.store not in conf.settings.stores:
            hint = f"BLOOMGUARD['STORES'] has {', '.join(sorted(conf.settings.stores)) or 'none'}."
            yield warn(guard, "bloomguard.W103", f"there is no store {guard.store!r}", hint)
    if guard.filter == "bitmap" and guard._meta.keys.width != 8:
        hint = "Set another one: a bitmap can only contain integers and dates, of a guard without a scope."
        yield warn(guard, "bloomguard.W111", "filter is 'bitmap'", hint)
    alias = alias_of(guard)
    if alias and guard.scope == SCHEMA and (why := no_schema(connections[alias])):
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
        text = (
            "it tracks writes only by signals: bulk_create, QuerySet.update, raw SQL and migrations bypass it, and "
            "under autocommit a row is visible before its key is in the filter"
        )
        hint = 'Remove sync = "signals" if you can; otherwise run rebuild_filter after such writes.'
        yield warn(guard, "bloomguard.W005", text, hint)
    for refusal in declaration_refusals(guard):
        yield warn(guard, refusal.id, refusal.reason, refusal.cure)
    yield from _routes(guard)
    if nullable := ", ".join(field.name for field in fields if field.null):
        hint = "The filter does not contain rows with NULL; views that find them by another lookup are not affected."
        yield warn(guard, "bloomguard.W001", f"{nullable} may be NULL", hint)


def _routes(guard: Guard) -> Iterator[CheckMessage]:
    if guard.routes == AUTO:
        if not guarded_routes(guard):
            hint = "manage.py guard_routes shows why for each pattern. Name the routes, or put @guarded on views."
            yield warn(guard, "bloomguard.W010", f"routes = {AUTO!r} matches no URL pattern", hint)
        return
    try:
        guarded_routes(guard)
    except ConfigurationError as problem:
        table = table_for()
        known = [pattern for pattern in table.patterns if pattern.is_named]
        names = sorted({pattern.view_name for pattern in known})
        useful = sorted({each.view_name for each in known if each.takes_id and not is_admin(each.callback)})
        shared = [name for name in guard.routes if len(patterns_named(table.patterns, name)) > 1]
        near = [match for route in guard.routes for match in get_close_matches(route, names)]
        if near and near[0] not in guard.routes:
            hint = f"Did you mean {' or '.join(map(repr, near))}?"
        elif shared:
            hint = "Give each pattern a name of its own, or remove the route: the guard answers at the lookup."
        elif near:
            hint = "Name the kwarg, as in routes = {'route': 'kwarg'}."
        elif useful:
            hint = f"The URLconf has {', '.join(useful[:20])}."
        else:
            hint = "No URL pattern that takes an identifier has a name: write path(..., name='...')."
        yield warn(guard, "bloomguard.W102", str(problem), hint)


def equality(guard: Guard, field: models.Field[Any, Any]) -> Iterator[CheckMessage]:
    """Report a field if the database may compare values as equal that have different keys."""
    if guard._meta.normalizes and kind_of(field) == "text":
        return
    target = value_field(field)
    collation = getattr(target, "db_collation", None)
    alias = alias_of(guard)
    # The catalogue of PostgreSQL says which are exact. Without a database, nothing is known of its columns.
    is_known = alias and connections[alias].vendor != "postgresql"
    if is_known and collation and collation not in EXACT_COLLATIONS:
        text = f"{field.name!r} has the collation {collation!r}, by which different texts may be equal"
        yield warn(guard, "bloomguard.W106", text, CURE)
    if own := own_conversions(field):
        or_else = ", or add normalize(self, value) to the guard" if kind_of(field) == "text" else ""
        yield warn(
            guard,
            "bloomguard.W002",
            f"{field.name!r} is a {type(target).__name__}, whose {', '.join(own)} may store or compare another value "
            "than its to_python returns",
            f"If so, let to_python return the stored value{or_else}.",
        )


def _misspelt(guard: Guard) -> Iterator[CheckMessage]:
    for cls in type(guard).__mro__[: type(guard).__mro__.index(Guard)]:
        for name in vars(cls):
            close = get_close_matches(name, OPTIONS, 1, 0.8)
            meant = _OTHER_NAMES.get(name) or (close[0] if close else "")
            if meant and not name.startswith("_") and not hasattr(Guard, name):
                text = f"it has an attribute {name!r}, which is not an option"
                hint = f"Did you mean {meant!r}? The options are {', '.join(OPTIONS)}."
                yield warn(guard, "bloomguard.W018", text, hint)


@register("bloomguard")
def check_registered(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that each guard in an app's ``guards.py`` is registered."""
    for refused, reason in registry.refused:
        named = refused if hasattr(refused, "__qualname__") else type(refused)
        text = f"{named.__module__}.{named.__qualname__} is not registered, so it guards nothing: {reason}."
        hint = "Write class MyGuard(Guard), and above it @register(Model), with the model to guard."
        yield Warning(text, hint=hint, id="bloomguard.W019")
    known = {*registry.classes, *(refused for refused, _ in registry.refused)}
    modules = {f"{config.name}.guards" for config in apps.get_app_configs()}
    for cls in _subclasses(Guard):
        if cls.__module__ in modules and cls not in known and not cls.__subclasses__():
            text = f"{cls.__module__}.{cls.__name__} is not registered, so it guards nothing."
            yield Warning(text, hint="Put @register(Model) above the class.", id="bloomguard.W019")


def _subclasses(cls: type[Guard]) -> Iterator[type[Guard]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)
