"""Limits that the package sets to what may wait inside a request, lifted: a busy machine is no fault of a lock's."""

from __future__ import annotations

from importlib import import_module

SECONDS = 60.0
#: Timeouts of a Redis store whose server answers.
PATIENT = {"connect_timeout": 60, "read_timeout": 60, "add_timeout": 60, "bulk_timeout": 60}
#: Where there is one. Tests of the limits themselves set their own.
LIMITS = (
    ("bloomguard.stores", "OPEN_SECONDS"),
    ("bloomguard.stores.disk", "LOCK_SECONDS"),
    ("bloomguard.state.connection", "CONNECT_SECONDS"),
    ("bloomguard.state.connection", "READ_SECONDS"),
    ("bloomguard.state.connection", "CHANGE_SECONDS"),
    ("bloomguard.guards.places", "CONNECT_SECONDS"),
    ("bloomguard.guards.places", "READ_SECONDS"),
    ("bloomguard.guards.runtime", "CONNECT_SECONDS"),
    ("bloomguard.guards.runtime", "READ_SECONDS"),
    ("bloomguard.routes.table", "_PATIENCE"),
    ("bloomguard.state.table", "RENEWAL_PATIENCE"),
    ("bloomguard.metrics", "_PATIENCE"),
)


def be_patient() -> None:
    """Let this process wait as long as it takes, within reason, for its own threads and its sister processes."""
    for path, name in LIMITS:
        module = import_module(path)
        assert hasattr(module, name), f"{path}.{name} has another name now"
        setattr(module, name, type(getattr(module, name))(SECONDS))  # drivers take whole seconds only
