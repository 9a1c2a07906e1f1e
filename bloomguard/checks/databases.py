"""Checks of the databases: which ones the routers name, and what the tables of the guards are like there.

:func:`check_routers`, :func:`check_databases` and :func:`check_tenant_apps` send no queries; the others run with
``check --deploy``, or ``check --database``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import DatabaseError, connections, router
from django.db.models import Model

from ..conf import listed
from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..guards.places import databases_of
from ..guards.scopes import DATABASE, sets_schema
from ..models import GuardState
from ..rebuild.backends import identity_of, is_standby
from ..rebuild.refusals import SEVERAL_TABLES, database_refusals, unreadable_columns
from ..state.own_connections import new_connection
from ..state.table import table
from ..writes.catalogue import Catalogue, Flow
from ..writes.consequences import may_add_key
from ..writes.introspection import load
from ..writes.sql.tokens import bare
from .guards import alias_of, equality, warn

#: Values of libpq's ``target_session_attrs`` that accept a read-only server.
_READERS = ("read-only", "standby", "prefer-standby")
#: What makes a guard or its database unreadable; other checks report it, as W101 or W034.
_REPORTED = (ConfigurationError, DatabaseError)


@register("bloomguard")
def check_routers(app_configs: Any, **kwargs: Any) -> Iterator[CheckMessage]:
    """Check that the routers name a database for the state rows and each guard's model without hints."""
    models = [guard.model for guard in registry]
    if models:
        yield from _raising(
            GuardState,
            "Let it name their database: until it does, every request passes, and each write of a guarded row is "
            "refused.",
        )
    for model in dict.fromkeys(models):
        yield from _raising(model, "Let it name one: rebuild_filter does not know another way to the rows.")


def _raising(model: type[Model], hint: str) -> Iterator[CheckMessage]:
    for each in router.routers:
        try:
            if hasattr(each, "db_for_write") and (alias := each.db_for_write(model)):
                connections[alias]  # raises if `DATABASES` does not have it
                return
        except Exception as error:
            text = (
                f"asked without hints for the database to which {model._meta.label} is written, the router "
                f"{type(each).__qualname__} causes {error!r}."
            )
            yield Warning(text, hint=hint, obj=model, id="bloomguard.W142")
            return


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
            f"the rows of {listed(names)} are written to the database {other!r}, and the state rows to "
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
    """Yield the guards whose rows are in ``databases``, each with its database; all guards without ``databases``.

    Shards are looked at if they are named: there may be hundreds.
    """
    for guard in registry:
        aliases = [alias_of(guard)]
        if guard.scope == DATABASE and databases is not None:
            aliases += databases_of(guard.model)
        for alias in dict.fromkeys(aliases):
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


@contextmanager
def own_connection(alias: str) -> Iterator[Any]:
    """Connect to a server for one check, unless the project's connection is open already.

    ``manage.py test --parallel`` runs the checks, and then forks its workers: they would share a connection that was
    left open, or its pool. SQLite has no session to share.
    """
    connection: Any = connections[alias]
    if connection.vendor == "sqlite" or connection.connection is not None:
        yield connection
        return
    own = new_connection(alias, "checks")
    if sets_schema(connection) and connection.schema_name:  # of a tenant, as `migrate_schemas` sets it
        own.set_schema(connection.schema_name)
    try:
        yield own
    finally:
        own.close()
