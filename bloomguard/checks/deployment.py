"""Checks of the filters (``check --deploy``), and of the database that has the state rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Info, Warning, register
from django.db import DatabaseError, connections, router

from ..exceptions import ConfigurationError, StoreError, StoreUnavailable
from ..filters import FilterError
from ..guards import Guard, registry
from ..models import GuardState
from ..rebuild.plan import open_active
from ..state.row import ARMED
from ..state.table import table
from .guards import warn

#: Values of libpq's ``target_session_attrs`` that accept a read-only server.
_READERS = ("read-only", "standby", "prefer-standby")


@register("bloomguard", deploy=True)
def check_filters(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check every guard's state row and filter; reads each filter completely.

    Checks nothing if ``databases`` are given and the one of the state rows is not among them.
    """
    guards = [guard for guard in registry if _has_store(guard)]
    alias = table.connection.alias
    if not guards or (databases is not None and alias not in databases):
        return []
    try:
        rows = GuardState.objects.using(alias).in_bulk()
        return [message for guard in guards for message in _filter(guard, rows.get(guard.name))]
    except DatabaseError as error:
        return [
            Warning(
                f"the state rows cannot be read from the database {alias!r}: {str(error).strip()}.",
                hint="Run manage.py migrate bloomguard if you have not; until the rows of GuardState can be read, "
                "every request passes.",
                id="bloomguard.W034",
            )
        ]


def _has_store(guard: Guard) -> bool:
    with suppress(ConfigurationError):  # reported as W101, W103, W105 or W109
        return guard._runtime.active_filter.store is not None
    return False


def _filter(guard: Guard, row: GuardState | None) -> Iterator[CheckMessage]:
    cure = f"manage.py rebuild_filter {guard.name}"
    if row is None or not row.active:
        yield warn(guard, "bloomguard.W030", "it has no filter yet, so every request passes", f"Run {cure}.")
        return
    if row.status != ARMED:
        text = f"it is fenced, so every request passes: {row.reason}"
        yield warn(guard, "bloomguard.W031", text, f"Fix the cause, then run {cure}.")
        return
    try:
        generation = open_active(guard, table.current(guard.name))
        keys = generation.approximate_size()
    except StoreUnavailable:  # reported as W021
        return
    except (StoreError, FilterError) as error:
        yield warn(
            guard,
            "bloomguard.W033",
            f"its filter cannot be used here, so every request passes: {error}",
            f"Run {cure}; while two releases run side by side, run it with the older one.",
        )
        return
    room = generation.layout.capacity
    if keys <= room:
        return
    given = guard.capacity is not None and guard.capacity <= keys
    yield warn(
        guard,
        "bloomguard.W032",
        f"its filter contains about {keys:,} keys, but has a capacity of {room:,}: more than the configured "
        f"{generation.layout.error_rate:.2%} of absent IDs pass",
        f"Raise its capacity, which is {guard.capacity:,}, or remove the line; then run {cure}."
        if given
        else f"Run {cure}, which builds a larger filter, and rebuild_filter --if-needed by cron.",
    )


@register("bloomguard")
def check_databases(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check that the database of the state rows is writable; report guards with rows in another database."""
    alias = table.connection.alias
    if not list(registry):
        return []
    messages: list[CheckMessage] = []
    if reason := _read_only(alias):
        messages.append(
            Warning(
                f"the state rows are written to the database {alias!r}, which seems to be a replica: {reason}. "
                "Filters cannot be published or fenced there, and stale state rows could make an invalid filter valid.",
                hint="Let db_for_write of your router return the primary for the app bloomguard.",
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
                f"{alias!r}: while {alias!r} does not answer, requests for them pass, and a write to {other!r} is "
                "refused if its add cannot be confirmed.",
                hint=f"After one of the two was restored from a backup, run rebuild_filter. With a router, the state "
                f"rows can be stored in {other!r} too, if the rows of all guards are.",
                id="bloomguard.I017",
            )
        )
    return messages


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
    if "mode=ro" in str(found["NAME"]):
        return "NAME has mode=ro"
    return ""
