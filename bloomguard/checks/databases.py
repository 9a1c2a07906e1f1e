"""The database that a check is about: what the routers name, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.checks import CheckMessage, Warning, register
from django.db import connections, router
from django.db.models import Model

from ..guards import Guard, registry
from ..guards.scopes import sets_schema
from ..models import GuardState


def alias_of(guard: Guard) -> str:
    """Return the database of the guard's rows; empty if a router raises: reported as W142."""
    try:
        return router.db_for_write(guard.model)
    except Exception:
        return ""


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
    own = connection.copy()
    own.settings_dict["OPTIONS"].pop("pool", None)
    if sets_schema(connection) and connection.schema_name:  # of a tenant, as `migrate_schemas` sets it
        own.set_schema(connection.schema_name)
    try:
        yield own
    finally:
        own.close()


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
            if hasattr(each, "db_for_write") and each.db_for_write(model):
                return
        except Exception as error:
            yield Warning(
                f"the router {type(each).__qualname__} raises {error!r} when it is asked, without hints, for the "
                f"database to which {model._meta.label} is written.",
                hint=hint,
                obj=model,
                id="bloomguard.W142",
            )
            return
