"""Checks of the setting ``BLOOMGUARD``, of its stores, and of the state rows and filters in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Info, Warning, register
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from .. import conf
from ..exceptions import ConfigurationError, StoreError, StoreUnavailable
from ..filters import FilterError
from ..guards import Guard, registry
from ..models import GuardState
from ..rebuild.plan import how_to_rebuild, open_active
from ..state.row import ARMED, locate_store
from ..state.table import table
from ..stores import stores
from .guards import warn

#: What the site's role needs, if another one has run ``migrate``.
_GRANT = f"GRANT SELECT, INSERT, UPDATE ON {GuardState._meta.db_table} TO the site's role"


@register("bloomguard")
def check_settings(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check the setting ``BLOOMGUARD`` and its stores."""
    for name in dir(settings):
        likeness = name.replace("_", "").rstrip("S")
        if name != "BLOOMGUARD" and name.isupper() and get_close_matches(likeness, ["BLOOMGUARD"], 1, 0.85):
            text = f"the settings have {name}, which bloomguard does not read."
            yield Warning(text, hint="The setting is named BLOOMGUARD.", id="bloomguard.W038")
    try:
        raw, aliases = conf.settings.raw, list(conf.settings.stores)
    except ConfigurationError as error:
        yield _unusable(error)
        return
    for unknown in sorted(map(str, set(raw) - conf.KNOWN)):
        hint = f"Known keys are {', '.join(sorted(conf.KNOWN))}."
        yield Warning(f"BLOOMGUARD has the unknown key {unknown!r}.", hint=hint, id="bloomguard.W108")
    if not isinstance(enabled := raw.get("ENABLED", True), bool):
        text = f"BLOOMGUARD['ENABLED'] is {enabled!r}, neither True nor False, so no guard answers."
        hint = "A setting from the environment is text: write os.environ.get(...) == '1'."
        yield Warning(text, hint=hint, id="bloomguard.W117")
    for alias in aliases:
        for unknown in sorted(map(str, set(conf.settings.stores[alias]) - {"BACKEND", "OPTIONS"})):
            hint = "Known keys are BACKEND and OPTIONS. Did you mean a path (FileStore) or url (RedisStore) in OPTIONS?"
            text = f"the store {alias!r} has the unknown key {unknown!r}."
            yield Warning(text, hint=hint, id="bloomguard.W115")
        try:
            yield from stores[alias].check()
        except ConfigurationError as error:
            yield _unusable(error)
        except StoreUnavailable as error:  # the client cannot be created while its servers do not answer
            text = f"the store {alias!r} does not answer: {str(error).rstrip('.')}."
            hint = "Until it answers, no guard answers a request, and each save disables its guards."
            yield Warning(text, hint=hint, id="bloomguard.W021")


def _unusable(error: ConfigurationError) -> Warning:
    is_redis = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "redis"
    page = conf.PAGES + ("redis.md" if is_redis else "settings.md")
    install = "Install bloomguard with the extra redis (in a clone: python -m pip install '.[redis]'), see"
    hint = f"{install if is_redis else 'See'} {page}."
    return Warning(f"{error}.", hint=hint, id="bloomguard.W109")


@register("bloomguard", deploy=True)
def check_servers(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check the current configuration of the stores' servers."""
    if not conf.settings.is_enabled:
        text = "BLOOMGUARD['ENABLED'] is not True, so no guard answers; writes still update the filters."
        hint = "Set it to True, or remove the line, to let the guards answer."
        yield Info(text, hint=hint, id="bloomguard.I039")
    with suppress(ConfigurationError):  # reported as W109
        for alias in conf.settings.stores:
            with suppress(ConfigurationError, StoreUnavailable):  # reported by other checks
                yield from stores[alias].check_deployed()


@register("bloomguard", deploy=True)
def check_filters(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check every guard's state row and filter; reads each filter completely.

    Checks nothing if ``databases`` are given and the one of the state rows is not among them.
    """
    alias = table.connection.alias
    if databases is not None and alias not in databases:
        return
    try:
        rows = GuardState.objects.using(alias).in_bulk()
        for guard in registry:
            with suppress(ConfigurationError, StoreUnavailable):  # reported as W101, W103, W105, W109 or W021
                yield from _filter(guard, rows.get(guard.name))
        for name in sorted(rows.keys() - {guard.name for guard in registry}):
            yield Warning(
                f"the state row {name!r} is of no guard of this project: the first write of each process to its table "
                "may wait two seconds.",
                hint=f"If the guard has another name now, give it name = {name!r}. Else, once no process of a version "
                f"with the guard runs, run manage.py remove_guard {name}.",
                id="bloomguard.W044",
            )
    except DatabaseError as error:
        if not list(registry):
            return  # no request and no write asks for them
        where = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        reason = str(error).strip().partition("\n")[0]  # PostgreSQL's next lines quote the statement
        if connections[alias].connection is None:
            do = f"Start the server, or correct DATABASES[{alias!r}]; where there is none, as in CI, leave out --deploy"
        else:
            do = f"Run manage.py migrate bloomguard{where} if you have not, {_GRANT}, and let the alias lead to a "
            do += "primary that takes writes"
        yield Warning(
            f"the state rows cannot be read from the database {alias!r}: {reason.rstrip('.')}.",
            hint=f"{do}. Until then every request passes, and saves of guarded rows may be refused.",
            id="bloomguard.W034",
        )
    else:
        if rows or list(registry):
            yield from _rights(alias)


def _rights(alias: str) -> Iterator[CheckMessage]:
    """Check that the site's role may change the state rows: EXPLAIN needs the statement's rights, and changes nothing.

    The catalogue of MariaDB and MySQL does not show the rights that a login has by a role.
    """
    if connections[alias].vendor not in ("postgresql", "mysql"):
        return
    rows, version = table.connection.quote(GuardState._meta.db_table), table.connection.quote("version")
    inserts, updates = f"INTO {rows} SELECT * FROM {rows}", f"{rows} SET {version} = 0"  # noqa: S608
    for verb, rest in (("INSERT", inserts), ("UPDATE", updates)):
        try:
            table.connection.execute(f"EXPLAIN {verb} {rest} WHERE 1 = 0")
        except DatabaseError as error:
            yield Warning(
                f"{verb} of the state rows is refused in the database {alias!r}: {str(error).strip()}.",
                hint=f"{_GRANT}. Until then rebuild_filter fails, and so does a save whose key cannot be added.",
                id="bloomguard.W042",
            )
            return


def _filter(guard: Guard, row: GuardState | None) -> Iterator[CheckMessage]:
    own = guard._runtime.active_filter.store
    run = how_to_rebuild(guard)
    do = f"{run[0].upper()}{run[1:]}"
    if row is None or not row.active:
        yield warn(guard, "bloomguard.W030", "it has no filter yet, so every request passes", f"{do}.")
        return
    if row.status != ARMED:
        since = f" since {row.fenced_at:%Y-%m-%d %H:%M %Z}".rstrip() if row.fenced_at else ""
        text = f"it is fenced{since}, so every request passes: {row.reason}"
        yield warn(guard, "bloomguard.W031", text, f"Fix the cause, then {run}.")
        return
    try:
        state = table.current(guard.name)
        store = locate_store(state.identity, own) or own
        generation = open_active(guard, state, store=store)
        keys = generation.approximate_size()
    except StoreUnavailable:  # reported as W021
        return
    except (StoreError, FilterError) as error:
        if own.is_of_one_process or any(each.id in ("bloomguard.W037", "bloomguard.W110") for each in own.check()):
            return  # the store is the cause
        text = f"its filter cannot be used here, so every request passes: {error}"
        hint = f"{do}. While two releases run side by side, wait until the older one has ended."
        yield warn(guard, "bloomguard.W033", text, hint)
        return
    if store is not own:
        kind = generation.layout.kind
        if generation.layout.filter_class.plain_bits:
            hint = f"Run manage.py rebuild_filter {guard.name} --from-store {store.alias} to move it to {own.alias!r}."
        else:
            hint = f"{do}, which builds it in {own.alias!r}: a {kind} filter cannot be copied while rows are written."
        yield Info(
            f"the guard {guard.name!r}: its filter is still in the store {store.alias!r}, and answers from there.",
            hint=hint,
            obj=guard.model,
            id="bloomguard.I041",
        )
    if keys > (room := generation.layout.capacity):
        yield warn(
            guard,
            "bloomguard.W032",
            f"its filter contains about {keys:,} keys, but has a capacity of {room:,}: more than the configured "
            f"{generation.layout.error_rate:.2%} of absent IDs pass",
            f"Raise its capacity, which is {guard.capacity:,}, or remove the line; then {run}."
            if guard.capacity is not None and guard.capacity <= keys
            else f"{do}, which builds a larger filter, and rebuild_filter --if-needed by cron.",
        )
