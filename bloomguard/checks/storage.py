"""Checks of the setting ``BLOOMGUARD``, of its stores and the filters in them, and of the databases.

Of the checks of databases, only :func:`check_databases` and :func:`check_tenant_apps` send no queries; the others run
with ``check --deploy``, or ``check --database``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from .. import conf
from ..exceptions import ConfigurationError, StoreError, StoreUnavailable
from ..filters import FilterError
from ..guards import Guard, registry
from ..guards.places import databases_of
from ..guards.scopes import DATABASE
from ..models import GuardState
from ..rebuild.plan import open_active
from ..rebuild.refusals import SEVERAL_TABLES, database_refusals, unreadable_columns
from ..rebuild.scopes import identity_of, is_standby
from ..state.row import ARMED, locate_store
from ..state.table import table
from ..stores import stores
from ..writes.catalogue import load
from ..writes.consequences import may_add_key
from ..writes.flows import Catalogue, Flow
from ..writes.sql.tokens import bare
from .databases import alias_of, own_connection
from .guards import equality, warn

#: Values of libpq's ``target_session_attrs`` that accept a read-only server.
_READERS = ("read-only", "standby", "prefer-standby")
#: What the site's role needs, if another one has run ``migrate``.
_GRANT = f"GRANT SELECT, INSERT, UPDATE ON {GuardState._meta.db_table} TO the site's role"
#: What makes a guard or its database unreadable; other checks report it, as W101 or W034.
_REPORTED = (ConfigurationError, DatabaseError)


@register("bloomguard")
def check_settings(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check the setting ``BLOOMGUARD`` and its stores."""
    for name in dir(settings):
        likeness = name.replace("_", "").rstrip("S")
        if name != "BLOOMGUARD" and name.isupper() and get_close_matches(likeness, ["BLOOMGUARD"], 1, 0.85):
            yield Warning(
                f"the settings have {name}, which bloomguard does not read.",
                hint="The setting is named BLOOMGUARD.",
                id="bloomguard.W038",
            )
    try:
        raw, aliases = conf.settings.raw, list(conf.settings.stores)
    except ConfigurationError as error:
        yield _unusable(error)
        return
    for unknown in sorted(map(str, set(raw) - conf.KNOWN)):
        yield Warning(
            f"BLOOMGUARD has the unknown key {unknown!r}.",
            hint=f"Known keys are {', '.join(sorted(conf.KNOWN))}.",
            id="bloomguard.W108",
        )
    if not isinstance(enabled := raw.get("ENABLED", True), bool):
        yield Warning(
            f"BLOOMGUARD['ENABLED'] is {enabled!r}, neither True nor False, so no guard answers.",
            hint="A setting from the environment is text: write os.environ.get(...) == '1'.",
            id="bloomguard.W117",
        )
    for alias in aliases:
        for unknown in sorted(map(str, set(conf.settings.stores[alias]) - {"BACKEND", "OPTIONS"})):
            yield Warning(
                f"the store {alias!r} has the unknown key {unknown!r}.",
                hint="Known keys are BACKEND and OPTIONS. Did you mean a path (FileStore) or a url (RedisStore) in "
                "OPTIONS?",
                id="bloomguard.W115",
            )
        try:
            yield from stores[alias].check()
        except ConfigurationError as error:
            yield _unusable(error)
        except StoreUnavailable as error:  # the client cannot be created while its servers do not answer
            yield Warning(
                f"the store {alias!r} does not answer: {str(error).rstrip('.')}.",
                hint="Until it answers, no guard answers a request, and each save disables its guards.",
                id="bloomguard.W021",
            )


def _unusable(error: ConfigurationError) -> Warning:
    is_redis = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "redis"
    hint = "Install bloomguard with the extra redis, see docs/redis.md." if is_redis else "See docs/settings.md."
    return Warning(f"{error}.", hint=hint, id="bloomguard.W109")


@register("bloomguard", deploy=True)
def check_servers(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check the current configuration of the stores' servers."""
    if not conf.settings.is_enabled:
        yield Info(
            "BLOOMGUARD['ENABLED'] is not True, so no guard answers; writes still update the filters.",
            hint="Set it to True, or remove the line, to let the guards answer.",
            id="bloomguard.I039",
        )
    with suppress(ConfigurationError):  # reported as W109
        for alias in conf.settings.stores:
            with suppress(ConfigurationError, StoreUnavailable):  # reported by other checks
                yield from stores[alias].check_deployed()


@register("bloomguard", deploy=True)
def check_filters(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check every guard's state row and filter; reads each filter completely.

    Checks nothing if ``databases`` are given and the one of the state rows is not among them.
    """
    guards = [guard for guard in registry if _has_store(guard)]
    alias = table.connection.alias
    if not guards or (databases is not None and alias not in databases):
        return
    try:
        rows = GuardState.objects.using(alias).in_bulk()
        for guard in guards:
            yield from _filter(guard, rows.get(guard.name))
    except DatabaseError as error:
        where = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        yield Warning(
            f"the state rows cannot be read from the database {alias!r}: {str(error).strip()}.",
            hint=f"Run manage.py migrate bloomguard{where} if you have not, and {_GRANT}. Until the state rows can be "
            "read, every request passes, and saves of guarded rows may be refused.",
            id="bloomguard.W034",
        )
    else:
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


def _has_store(guard: Guard) -> bool:
    with suppress(ConfigurationError):  # reported as W101, W103, W105 or W109
        return guard._runtime.active_filter.store is not None
    return False


def _filter(guard: Guard, row: GuardState | None) -> Iterator[CheckMessage]:
    run = f"run manage.py rebuild_filter {guard.name}"
    if row is None or not row.active:
        yield warn(guard, "bloomguard.W030", "it has no filter yet, so every request passes", f"R{run[1:]}.")
        return
    if row.status != ARMED:
        text = f"it is fenced, so every request passes: {row.reason}"
        yield warn(guard, "bloomguard.W031", text, f"Fix the cause, then {run}.")
        return
    own = guard._runtime.active_filter.store
    try:
        state = table.current(guard.name)
        store = locate_store(state.identity, own) or own
        generation = open_active(guard, state, store=store)
        keys = generation.approximate_size()
    except StoreUnavailable:  # reported as W021
        return
    except (StoreError, FilterError) as error:
        text = f"its filter cannot be used here, so every request passes: {error}"
        hint = f"R{run[1:]}. While two releases run side by side, wait until the older one has ended."
        yield warn(guard, "bloomguard.W033", text, hint)
        return
    if store is not own:
        yield Info(
            f"the guard {guard.name!r}: its filter is still in the store {store.alias!r}, and answers from there.",
            hint=f"Run manage.py rebuild_filter {guard.name} --from-store {store.alias} to move it to {own.alias!r}.",
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
            else f"R{run[1:]}, which builds a larger filter, and rebuild_filter --if-needed by cron.",
        )


# -- databases


@register("bloomguard", deploy=True)
def check_columns(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check the tables in the database itself: raw SQL in a migration or manual changes may have altered them."""
    for guard, alias in _guards_in(databases):
        with suppress(*_REPORTED):
            reported = {message.id for field in guard._meta.fields for message in equality(guard, field)}
            with own_connection(alias) as connection:
                if denied := unreadable_columns(guard, connection):
                    yield warn(guard, denied.id, denied.reason, denied.cure)
                    continue  # to such a login MariaDB does not describe the table
                for refusal in database_refusals(guard, connection):
                    if refusal.id not in reported and refusal.id != SEVERAL_TABLES:  # of `check --database`
                        yield warn(guard, refusal.id, refusal.reason, refusal.cure)


@register("bloomguard", deploy=True)
def check_triggers(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Report triggers, rules and foreign key actions that may write keys of a guard."""
    catalogues: dict[str, Catalogue] = {}
    for guard, alias in _guards_in(databases):
        with suppress(*_REPORTED):
            if alias not in catalogues:
                with own_connection(alias) as connection, connection.wrap_database_errors:
                    connection.ensure_connection()
                    catalogues[alias] = load(connection)
            for name, because in _writers(catalogues[alias], guard, connections[alias].vendor):
                yield warn(
                    guard,
                    "bloomguard.W035",
                    f"{because} on {name!r} in the database {alias!r} may write its keys. "
                    "If Django sends the statement, the guard is disabled until it is rebuilt. If another program "
                    "sends it, bloomguard cannot detect it, and requests for the new row would be answered 404",
                    "Let the application write the keys; otherwise run verify_filter --repair often, by cron, and "
                    "rebuild_filter after such writes. If it writes no keys, add this ID to SILENCED_SYSTEM_CHECKS.",
                )


def _guards_in(databases: Sequence[str] | None) -> Iterator[tuple[Guard, str]]:
    """Yield the guards whose rows are in ``databases``, each with its database; all guards without ``databases``."""
    for guard in registry:
        alias = alias_of(guard)
        if alias and (databases is None or alias in databases):
            yield guard, alias


def _writers(catalogue: Catalogue, guard: Guard, vendor: str) -> list[tuple[str, str]]:
    """Return the tables with something that writes keys of ``guard``, and what it is."""
    tables = {bare(name, vendor): name for name in guard._meta.tables}

    def writes_keys(flow: Flow) -> bool:
        effects = [flow.effect, *(effect for effect, _ in catalogue.follow([flow.effect]))]
        return any(
            effect.verb == "any" or (effect.name in tables and may_add_key(effect, guard, tables[effect.name]))
            for effect in effects
        )

    return sorted(
        {
            (name, flow.because)
            for name, flows in catalogue.flows.items()
            for flow in flows
            if flow.is_active and writes_keys(flow)
        }
    )


@register(Tags.database)  # since Django 6.1 plain checks get all databases, and only this tag keeps them from a query
def check_places(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that each guard's table is one table, not one of several schemas or databases; nothing by default."""
    for guard in registry:
        with suppress(*_REPORTED):
            for text, hint in _several_tables(guard, databases or ()):
                yield Error(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=SEVERAL_TABLES)


def _several_tables(guard: Guard, databases: Sequence[str]) -> Iterator[tuple[str, str]]:
    home, name = alias_of(guard), guard.model._meta.db_table
    if not home:
        return
    named = [alias for alias in databases_of(guard.model) if alias in databases]
    for alias in named if guard.scope == DATABASE else {home} & set(databases):
        with own_connection(alias) as connection:
            for refusal in database_refusals(guard, connection):
                if refusal.id == SEVERAL_TABLES:
                    yield refusal.reason, refusal.cure
    if len(named) < 2 or guard.scope == DATABASE:
        return
    having: dict[Any, str] = {}
    for alias in named:
        with own_connection(alias) as connection:
            if name in connection.introspection.table_names() and not is_standby(connection):
                having.setdefault(identity_of(connection), repr(alias))
    if len(having) > 1:
        yield (
            f"the databases {', '.join(having.values())} each have a table {name!r}; its filter knows the rows of "
            f"{home!r} alone",
            "If one of them has all rows, let allow_migrate of your router allow the table in that one alone. If the "
            "others are replicas, give them TEST = {'MIRROR': ...} in DATABASES. If each has rows of its own, set "
            "scope = 'database'.",
        )


@register("bloomguard")
def check_tenant_apps(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that django-tenants gives no tenant state rows of its own."""
    apps = getattr(settings, "TENANT_APPS", ())
    if any(str(each).partition(".apps.")[0] == "bloomguard" for each in apps):
        text = "TENANT_APPS has bloomguard, so each schema has state rows of its own: a guard may read the wrong ones"
        yield Warning(f"{text}.", hint="Leave it in SHARED_APPS alone.", id="bloomguard.W139")


@register("bloomguard")
def check_databases(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that the database of the state rows is writable; report guards with rows in another database."""
    alias = table.connection.alias
    if not list(registry):
        return
    if reason := _read_only(alias):
        yield Warning(
            f"the state rows are written to the database {alias!r}, which seems to be a replica: {reason}. "
            "Filters cannot be published or fenced there, and stale state rows could make an invalid filter valid.",
            hint="Let db_for_write of your router return the primary for the app bloomguard.",
            id="bloomguard.W016",
        )
    elsewhere: dict[str, list[str]] = {}
    for guard, other in _guards_in(None):
        if other != alias:
            elsewhere.setdefault(other, []).append(repr(guard.name))
    for other, names in sorted(elsewhere.items()):
        yield Info(
            f"the rows of {', '.join(names)} are written to the database {other!r}, and the state rows to "
            f"{alias!r}: while {alias!r} does not answer, requests for them pass, and a write to {other!r} is "
            "refused if its add cannot be confirmed.",
            hint=f"After one of the two was restored from a backup, run rebuild_filter. With a router, the state "
            f"rows can be stored in {other!r} too, if the rows of all guards are.",
            id="bloomguard.I017",
        )


def _read_only(alias: str) -> str:
    """Return the setting by which the database refuses writes; empty if there is none."""
    found = connections[alias].settings_dict
    options, mirrored = found["OPTIONS"], found["TEST"].get("MIRROR")
    if mirrored:
        return f"TEST['MIRROR'] is {mirrored!r}"
    if options.get("target_session_attrs") in _READERS:
        return f"OPTIONS['target_session_attrs'] is {options['target_session_attrs']!r}"
    if "default_transaction_read_only=on" in str(options.get("options", "")).replace(" ", ""):
        return "OPTIONS['options'] has default_transaction_read_only=on"
    return "NAME has mode=ro" if "mode=ro" in str(found["NAME"]) else ""
