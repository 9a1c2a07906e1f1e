"""Check that each guard's table is one table, not one of several schemas or databases; and the state rows' too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router

from ..exceptions import ConfigurationError
from ..guards import Guard, registry
from ..guards.places import databases_of
from ..guards.scopes import DATABASE
from ..rebuild.refusals import SEVERAL_TABLES, database_refusals


@register(Tags.database)  # since Django 6.1 plain checks get all databases, and only this tag keeps them from a query
def check_places(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the tables in the catalogues of ``databases``; nothing without them."""
    messages: list[CheckMessage] = []
    for guard in registry:
        with suppress(ConfigurationError, DatabaseError):  # other checks report these
            messages += [
                Error(f"the guard {guard.name!r}: {text}.", hint=hint, obj=guard.model, id=SEVERAL_TABLES)
                for text, hint in _of(guard, databases or ())
            ]
    return messages


@register("bloomguard")
def check_tenant_apps(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check that django-tenants gives no tenant state rows of its own."""
    apps = getattr(settings, "TENANT_APPS", ())
    if not any(str(each).partition(".apps.")[0] == "bloomguard" for each in apps):
        return []
    text = "TENANT_APPS has bloomguard, so each schema has state rows of its own: a guard may read the wrong ones"
    return [Warning(f"{text}.", hint="Leave it in SHARED_APPS alone.", id="bloomguard.W139")]


def _of(guard: Guard, databases: Sequence[str]) -> Iterator[tuple[str, str]]:
    home = router.db_for_write(guard.model)
    table = guard.model._meta.db_table
    named = [alias for alias in databases_of(guard.model) if alias in databases]
    for alias in named if guard.scope == DATABASE else {home} & set(databases):
        for refusal in database_refusals(guard, connections[alias]):
            if refusal.id == SEVERAL_TABLES:
                yield refusal.reason, refusal.cure
    if len(named) < 2 or guard.scope == DATABASE:
        return
    having = [alias for alias in named if table in connections[alias].introspection.table_names()]
    if len(having) > 1:
        yield (
            f"the databases {', '.join(map(repr, having))} each have a table {table!r}; its filter knows the rows of "
            f"{home!r} alone",
            "If one of them has the rows and the others are no replicas, let allow_migrate of your router say so, and "
            "drop the other tables. If each has rows of its own, set scope = 'database'.",
        )
