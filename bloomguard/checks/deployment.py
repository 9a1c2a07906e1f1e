"""Whether every guard has a filter that can answer, as database and stores have it now: for ``check --deploy``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Warning, register
from django.db import DatabaseError

from ..building.needs import opened
from ..exceptions import ConfigurationError, StoreError, StoreUnavailable
from ..filters import FilterError
from ..guards import Guard, registry
from ..models import GuardState
from ..stores import Generation
from ..sync.state import ARMED, table
from .tags import TAG


@register(TAG, deploy=True)
def check_filters(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Every guard's state row and filter; reads the whole of each filter.

    Where ``databases`` are named and the one of the state rows is not among them, nothing is asked.
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
                f"the database {alias!r} does not tell which filters are valid: {str(error).strip()}.",
                hint="Run manage.py migrate bloomguard if it has not been; until the rows of GuardState can be read, "
                "every request passes.",
                id="bloomguard.W034",
            )
        ]


def _has_store(guard: Guard) -> bool:
    with suppress(ConfigurationError):  # which is E001, E003, E005 or E009
        return guard.live.store is not None
    return False


def _filter(guard: Guard, row: GuardState | None) -> Iterator[CheckMessage]:
    def warning(number: int, text: str, hint: str) -> Warning:
        return Warning(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=f"bloomguard.W{number:03}")

    cure = f"manage.py rebuild_filter {guard.name}"
    if row is None or not row.active:
        yield warning(30, "it has no filter yet, so every request passes", f"Run {cure}.")
        return
    if row.status != ARMED:
        yield warning(31, f"it is fenced, so every request passes: {row.reason}", f"Mend that, and run {cure}.")
        return
    try:
        generation = opened(guard, table.current(guard.name))
        keys = generation.approximate_size()
    except StoreUnavailable:  # which is W021
        return
    except (StoreError, FilterError) as error:
        yield warning(
            33,
            f"its filter cannot be used here, so every request passes: {error}",
            f"Run {cure}; while two releases serve side by side, with the older one.",
        )
        return
    yield from _fullness(guard, generation, keys, cure, warning)


def _fullness(guard: Guard, generation: Generation, keys: int, cure: str, warning: Any) -> Iterator[CheckMessage]:
    room = generation.layout.capacity
    if keys <= room:
        return
    given = guard.capacity is not None and guard.capacity <= keys
    yield warning(
        32,
        f"about {keys:,} keys are in its filter, which has room for {room:,}: more than the promised "
        f"{generation.layout.error_rate:.2%} of absent IDs pass",
        f"Raise its capacity, which is {guard.capacity:,}, or remove the line; then run {cure}."
        if given
        else f"Run {cure}, which makes more room, and rebuild_filter --if-needed by cron.",
    )
