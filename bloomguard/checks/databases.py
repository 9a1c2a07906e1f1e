"""Which database the state rows live in, beside those that the guarded rows are written to."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Info, Warning, register
from django.db import connections, router

from ..guards import registry
from ..sync.state import table
from .tags import TAG

#: What libpq takes for ``target_session_attrs`` where a server that refuses writes will do.
_READERS = ("read-only", "standby", "prefer-standby")


@register(TAG)
def check_databases(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Whether the state rows can be written where the routers send them, and who depends on another database."""
    alias = table.connection.alias
    if not list(registry):
        return []
    messages: list[CheckMessage] = []
    if reason := _read_only(alias):
        messages.append(
            Warning(
                f"the state rows are written to the database {alias!r}, which seems to be a replica: {reason}. There "
                "no filter can be published or fenced, and rows read late could make a filter valid that is not.",
                hint="Let db_for_write of your router name the primary for the app bloomguard.",
                id="bloomguard.W016",
            )
        )
    elsewhere: dict[str, list[str]] = {}
    for guard in registry:
        elsewhere.setdefault(router.db_for_write(guard.model), []).append(repr(guard.name))
    elsewhere.pop(alias, None)
    for other, names in sorted(elsewhere.items()):
        messages.append(
            Info(
                f"the rows of {', '.join(names)} are written to the database {other!r}, and the state rows to "
                f"{alias!r}: while {alias!r} does not answer, requests for them pass, and a write to {other!r} whose "
                "add cannot be proved is refused.",
                hint=f"After one of the two was restored from a backup, run rebuild_filter. With a router, the state "
                f"rows can live in {other!r} too, if all guards' rows do.",
                id="bloomguard.I017",
            )
        )
    return messages


def _read_only(alias: str) -> str:
    """What the settings of a database say that makes it one that refuses writes; empty if they say nothing such."""
    found = connections[alias].settings_dict
    options, mirrored = found["OPTIONS"], found["TEST"].get("MIRROR")
    if mirrored:
        return f"TEST['MIRROR'] is {mirrored!r}"
    if options.get("target_session_attrs") in _READERS:
        return f"OPTIONS['target_session_attrs'] is {options['target_session_attrs']!r}"
    if "default_transaction_read_only=on" in str(options.get("options", "")).replace(" ", ""):
        return "OPTIONS['options'] has default_transaction_read_only=on"
    if "mode=ro" in str(found["NAME"]):
        return "NAME has mode=ro"
    return ""
