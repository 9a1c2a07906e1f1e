"""System checks: a mistake in a guard, a setting or a deployment is said at start, with the value and the cure.

A plain check reads settings, classes and the URLconf, and asks neither a database nor a server; what only they can
tell is a matter of ``check --deploy``.
"""

from __future__ import annotations

from .collations import check_columns
from .databases import check_databases
from .deployment import check_filters
from .guards import check_guards
from .middleware import check_order, check_presence
from .routes import check_closed
from .stores import check_servers, check_settings
from .writes import check_triggers

__all__ = [
    "check_closed",
    "check_columns",
    "check_databases",
    "check_filters",
    "check_guards",
    "check_order",
    "check_presence",
    "check_servers",
    "check_settings",
    "check_triggers",
]
