"""System checks: report errors in guards, settings and deployments at startup, each with the value and the fix.

Plain checks read settings, classes and the URLconf, and query neither databases nor servers. Checks that need them run
with ``check --deploy``, or ``check --database``. Importing a module registers its checks.
"""

from . import databases, guards, middleware, storage  # noqa: F401
