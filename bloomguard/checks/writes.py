"""Writes that no hook of Django's sees, as far as a database can tell of them: triggers. For ``check --deploy``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from django.core.checks import CheckMessage, Warning, register
from django.db import DatabaseError, connections, router

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..sync.sqltext import bare, writes
from ..sync.watches import columns
from .tags import TAG


class Trigger(NamedTuple):
    """A trigger's name, the table it is on, and what it runs."""

    name: str
    table: str
    body: str


@register(TAG, deploy=True)
def check_triggers(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Triggers whose text writes keys of a guard; what functions called by them do is not looked at."""
    messages: list[CheckMessage] = []
    for guard in registry:
        alias = router.db_for_write(guard.model)
        if databases is not None and alias not in databases:
            continue
        with suppress(ConfigurationError, DatabaseError):  # which is E001, or W034 where it is the same database
            messages += [
                Warning(
                    f"the guard {guard.name!r}: the trigger {trigger.name!r} on {trigger.table!r} in the database "
                    f"{alias!r} may write its keys, which nobody sees: such a row would be answered 404.",
                    hint="Let the application write them; else run verify_filter --repair often, by cron, and "
                    "rebuild_filter after such writes. If it writes none, silence this with SILENCED_SYSTEM_CHECKS.",
                    obj=guard.model,
                    id="bloomguard.W035",
                )
                for trigger in _triggers(connections[alias])
                if _may_write(trigger, guard, connections[alias].vendor)
            ]
    return messages


def _triggers(connection: Any) -> Iterator[Trigger]:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
            for name, table, sql in cursor.fetchall():
                yield Trigger(name, table, re.split(r"\bBEGIN\b", sql, maxsplit=1, flags=re.IGNORECASE)[-1])
        elif connection.vendor == "postgresql":
            cursor.execute(
                "SELECT tgname, relname, prosrc FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
                "JOIN pg_proc ON pg_proc.oid = tgfoid WHERE NOT tgisinternal AND tgenabled <> 'D' ORDER BY tgname"
            )
            yield from (Trigger(*row) for row in cursor.fetchall())


def _may_write(trigger: Trigger, guard: Guard, vendor: str) -> bool:
    minded = {bare(table): columns(guard, table) for table in guard.tables}
    if any(write.sets(minded[write.table]) for write in writes(trigger.body, minded, vendor)):
        return True
    # Before a row is written, a trigger of PostgreSQL's may change it.
    changed = {name.lower() for name in re.findall(r"\bNEW\.\"?(\w+)\"?\s*:?=", trigger.body, re.IGNORECASE)}
    own = {column.lower() for column in minded.get(trigger.table.lower(), ())}
    return vendor == "postgresql" and bool(own & changed)
