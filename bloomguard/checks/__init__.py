"""System checks: report errors in guards, settings and deployments at startup, each with the value and the fix.

Plain checks read settings, classes and the URLconf, and query neither databases nor servers. Checks that need them run
with ``check --deploy``.
"""

from __future__ import annotations

from .deployment import check_databases, check_filters
from .guards import check_columns, check_guards
from .middleware import check_closed, check_order, check_presence
from .places import check_places
from .spelling import check_names
from .stores import check_servers, check_settings
from .writes import check_triggers

__all__ = [
    "check_closed",
    "check_columns",
    "check_databases",
    "check_filters",
    "check_guards",
    "check_names",
    "check_order",
    "check_places",
    "check_presence",
    "check_servers",
    "check_settings",
    "check_triggers",
]
