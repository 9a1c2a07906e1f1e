"""Who builds a generation, as the state row has it, and whether that process is still alive."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from django.utils import timezone

from ..exceptions import BuilderBusy
from ..models import GuardState
from ..sync.state import State, StateTable

#: A builder that has not been heard of for this long is dead.
DEAD_AFTER_SECONDS = 60.0


def myself() -> str:
    """This process: ``host/pid``."""
    return f"{socket.gethostname()}/{os.getpid()}"


def refuse_if_alive(table: StateTable, seen: State) -> None:
    """Raise :class:`BuilderBusy` if whoever ``seen`` names as builder has been heard of, or is seen to run here."""
    host, _, pid = seen.builder.rpartition("/")
    row = GuardState.objects.using(table.connection.alias).get(name=seen.name)
    silent = timezone.now() - (row.builder_seen_at or timezone.now())
    dead = silent > timedelta(seconds=DEAD_AFTER_SECONDS)
    if host == socket.gethostname() and not _runs(int(pid)):
        dead = True
    if not dead:
        raise BuilderBusy(
            f"{seen.name} is being built by process {pid} on {host}, heard of {silent.total_seconds():.0f} s ago; "
            "run it again later"
        )


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
