"""Check the database catalogue for triggers and the like that write a guard's keys: ``check --deploy``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, register
from django.db import DatabaseError, connections, router

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..writes.catalogue import load
from ..writes.consequences import may_add_key
from ..writes.flows import Catalogue, Flow
from ..writes.sql.tokens import bare
from .guards import warn


@register("bloomguard", deploy=True)
def check_triggers(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report triggers, rules and foreign key actions that may write keys of a guard."""
    messages: list[CheckMessage] = []
    catalogues: dict[str, Catalogue] = {}
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if databases is not None and alias not in databases:
            continue
        with suppress(ConfigurationError, DatabaseError):  # reported as W101, or as W034 for the state rows' database
            catalogue = catalogues.get(alias) or _load(alias)
            catalogues[alias] = catalogue
            messages += [
                warn(
                    guard,
                    "bloomguard.W035",
                    f"{because} on {table!r} in the database {alias!r} may write its keys. "
                    "If Django sends the statement, the guard is disabled until it is rebuilt. If another program "
                    "sends it, bloomguard cannot detect it, and requests for the new row would be answered 404",
                    "Let the application write the keys; otherwise run verify_filter --repair often, by cron, and "
                    "rebuild_filter after such writes. If it writes no keys, add this ID to SILENCED_SYSTEM_CHECKS.",
                )
                for table, because in _sources(catalogue, guard)
            ]
    return messages


def _load(alias: str) -> Catalogue:
    connection = connections[alias]
    with connection.wrap_database_errors:
        connection.ensure_connection()
        return load(connection)


def _sources(catalogue: Catalogue, guard: Guard) -> Iterator[tuple[str, str]]:
    """Yield the tables with something that writes keys of ``guard``, and what it is."""
    found = dict.fromkeys(
        (table, flow.because)
        for table, flows in catalogue.flows.items()
        for flow in flows
        if flow.is_active and _writes_keys(catalogue, flow, guard)
    )
    yield from sorted(found)


def _writes_keys(catalogue: Catalogue, flow: Flow, guard: Guard) -> bool:
    tables = {bare(table): table for table in guard._meta.tables}
    return any(
        effect.verb == "any" or (effect.name in tables and may_add_key(effect, guard, tables[effect.name]))
        for effect in (flow.effect, *(effect for effect, _ in catalogue.follow([flow.effect])))
    )
