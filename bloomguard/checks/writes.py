"""What a database writes by itself, as far as its catalogue tells. For ``check --deploy``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Warning, register
from django.db import DatabaseError, connections, router

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..sync.catalogue import Catalogue, Flow, load
from ..sync.consequences import gives_keys
from ..sync.effects import bare
from .tags import TAG


@register(TAG, deploy=True)
def check_triggers(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Triggers, rules and actions of foreign keys that may write keys of a guard."""
    messages: list[CheckMessage] = []
    catalogues: dict[str, Catalogue] = {}
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if databases is not None and alias not in databases:
            continue
        with suppress(ConfigurationError, DatabaseError):  # which is E001, or W034 where it is the same database
            catalogue = catalogues.get(alias) or _load(alias)
            catalogues[alias] = catalogue
            messages += [
                Warning(
                    f"the guard {guard.name!r}: {because} on {table!r} in the database {alias!r} may write its keys. "
                    "Where Django sends the statement, the guard is disabled until it is rebuilt; where another "
                    "program does, nobody sees it: such a row would be answered 404.",
                    hint="Let the application write them; else run verify_filter --repair often, by cron, and "
                    "rebuild_filter after such writes. If it writes none, silence this with SILENCED_SYSTEM_CHECKS.",
                    obj=guard.model,
                    id="bloomguard.W035",
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
    """The tables on which something writes keys of ``guard``, and what it is."""
    found = dict.fromkeys(
        (table, flow.because)
        for table, flows in catalogue.flows.items()
        for flow in flows
        if flow.is_active and _writes_keys(catalogue, flow, guard)
    )
    yield from sorted(found)


def _writes_keys(catalogue: Catalogue, flow: Flow, guard: Guard) -> bool:
    tables = {bare(table): table for table in guard.tables}
    return any(
        effect.verb == "any" or (effect.name in tables and gives_keys(effect, guard, tables[effect.name]))
        for effect in {flow.effect, *catalogue.follow([flow.effect])}
    )
