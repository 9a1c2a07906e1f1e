"""System checks: a mistake in a guard or a setting is said at start, with the value and the cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, models, router
from django.middleware.locale import LocaleMiddleware
from django.utils.module_loading import import_string

from . import conf
from .alive import doubts
from .exceptions import ConfigurationError, StoreUnavailable
from .filters import InvalidShape
from .filters.sizing import check_capacity, check_error_rate
from .guards import AUTO, Guard, registry
from .keys import kind_of, value_field
from .middleware import BloomGuardMiddleware
from .patterns import patterns
from .routes import guarded_routes, table_for
from .stores import stores

TAG = "bloomguard"
SYNCS = ("statements", "signals")
MODES = ("enforce", "shadow")
KINDS = ("auto", "bloom", "bitmap", "cuckoo")

#: Databases whose usual collation takes different texts for equal.
_CASELESS = ("mysql", "microsoft")
#: Middleware that may turn a 404 into another answer.
_FALLBACKS = (
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "django.contrib.redirects.middleware.RedirectFallbackMiddleware",
)


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


@register(TAG, deploy=True)
def check_servers(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """The servers behind stores, as they are set up now."""
    messages: list[CheckMessage] = []
    with suppress(ConfigurationError):  # which is E009
        for alias in conf.settings.stores:
            with suppress(ConfigurationError, StoreUnavailable):  # which the other checks tell of
                messages += stores[alias].check_deployed()
    return messages


@register(TAG)
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """The setting ``BLOOMGUARD`` and its stores."""
    try:
        raw, aliases = conf.settings.raw, list(conf.settings.stores)
    except ConfigurationError as error:
        return [_unusable(error)]
    messages: list[CheckMessage] = []
    for unknown in sorted(map(str, set(raw) - conf.KNOWN)):
        messages.append(
            Error(
                f"BLOOMGUARD has the key {unknown!r}, which nothing reads.",
                hint=f"Known are {', '.join(sorted(conf.KNOWN))}.",
                id="bloomguard.E008",
            )
        )
    for alias in aliases:
        try:
            messages += stores[alias].check()
        except ConfigurationError as error:
            messages.append(_unusable(error))
        except StoreUnavailable as error:  # a client that cannot be made while its servers are away
            messages.append(
                Warning(
                    f"the store {alias!r} does not answer: {error}.",
                    hint="Until it does, no request is answered by a guard, and saves take their guards out of use.",
                    id="bloomguard.W021",
                )
            )
    return messages


def _unusable(error: ConfigurationError) -> Error:
    return Error(
        f"{error}.",
        hint="See Settings in the README, and the docstring of the BACKEND for its OPTIONS; RedisStore needs "
        "pip install bloomguard[redis].",
        id="bloomguard.E009",
    )


@register(TAG)
def check_order(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Which middleware has to come before the guard, so that it sees what the guard does."""
    inner: list[type] = []
    for path in settings.MIDDLEWARE:
        with suppress(ImportError):  # Django says so itself
            middleware = import_string(path)
            if isinstance(middleware, type):
                inner.append(middleware)
    guards = [place for place, middleware in enumerate(inner) if issubclass(middleware, BloomGuardMiddleware)]
    if not guards:
        return []
    messages: list[CheckMessage] = []
    for middleware in inner[guards[0] + 1 :]:
        name = f"{middleware.__module__}.{middleware.__name__}"
        if issubclass(middleware, LocaleMiddleware) and table_for(settings.ROOT_URLCONF).by_language:
            messages.append(
                Warning(
                    f"MIDDLEWARE has BloomGuardMiddleware before {name}, so it cannot tell which of the URLconf's "
                    "languages a path is in, and passes every request.",
                    hint=f"Put BloomGuardMiddleware after {name}.",
                    id="bloomguard.W003",
                )
            )
        if name in _FALLBACKS:
            messages.append(
                Warning(
                    f"MIDDLEWARE has BloomGuardMiddleware before {name}, which then cannot answer in place of a 404.",
                    hint=f"Put BloomGuardMiddleware after {name}.",
                    id="bloomguard.W004",
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
        yield from _equality(guard, field, error)
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
    yield from _alive(guard, error)
    yield from _routes(guard, error)
    yield from _uniqueness(guard, fields)


def _equality(guard: Guard, field: models.Field[Any, Any], error: Any) -> Iterator[CheckMessage]:
    """Whether the database may hold values for equal that have different keys."""
    if type(guard).normalize is not Guard.normalize:
        return
    target = value_field(field)
    cure = "Give the guard a normalize(self, value) that maps equal texts to one, such as value.casefold()."
    collation = getattr(target, "db_collation", None)
    vendor = connections[router.db_for_write(guard.model)].vendor
    if collation:
        text = f"{field.name!r} has the collation {collation!r}, under which different texts may be equal"
        yield error(6, text, cure)
    elif vendor in _CASELESS and kind_of(field) == "text":
        yield error(6, f"{field.name!r} is text in {vendor}, which takes A for a unless told otherwise", cure)
    if kind_of(field) == "text" and not target.model._meta.managed:
        yield Warning(
            f"the guard {guard.name!r}: {field.name!r} is text in a table that Django does not manage; if its column "
            "pads or folds text, as char(n) and citext do, rows are found under other texts than theirs.",
            hint="If it is, give the guard a normalize(self, value), such as value.rstrip(' ') for char(n).",
            obj=guard.model,
            id="bloomguard.W006",
        )
    if not type(target).get_prep_value.__module__.startswith("django."):
        yield Warning(
            f"the guard {guard.name!r}: {field.name!r} is a {type(target).__name__}, whose get_prep_value may store "
            "something else than its to_python gives.",
            hint="If it does, let to_python give what is stored, or give the guard a normalize(self, value).",
            obj=guard.model,
            id="bloomguard.W002",
        )


def _alive(guard: Guard, error: Any) -> Iterator[CheckMessage]:
    for doubt in dict.fromkeys(doubts(guard.model, guard.alive)):
        yield error(
            13,
            f"alive can change without a write of the row: it {doubt}",
            "Let it compare columns of the row itself with constants, and decide the rest in the view; a row too many "
            "in the filter costs one look-up.",
        )


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
