"""bloomguard: answer requests for IDs that do not exist, before any cache or database query.

A request passes up to three places that ask a guard. If the guard answers ``ABSENT``, the first two respond with a 404,
and the third gives the ORM an empty result:

1. ``door/``, before Django, if the project wraps its application in ``wsgi`` or ``asgi``: it reads IDs from raw paths;
2. ``routes/``, called by ``middleware`` or ``decorators`` before the view runs: they map views to guards;
3. ``lookups/``, when the ORM is about to send a SELECT for one row.

The guard (``guards/``) makes a key of the ID. ``state/`` reads the state row, which names the active generation, and
looks into the negative cache. ``stores/`` holds the generation (memory, file, Redis), ``filters/`` looks for the key in
its bits. ``metrics/`` counts the verdict, and flushes the counts into the store in a thread.

A write: ``writes/`` wraps the ORM's statements, signals and cursors. Before the COMMIT it adds the keys of the written
rows to every generation that the state row names, through ``guards/``, ``state/``, ``stores/`` and ``filters/``. If an
add cannot be confirmed, it fences the guard: all its requests pass until the next rebuild.

A rebuild: the command ``rebuild_filter``, or a worker for the admin page (``dashboard/``), calls ``rebuild/``. This
creates a generation in ``stores/``, announces it in the state row (``state/``), waits until older transactions have
ended, adds the keys of all rows of the table, verifies the result and publishes it in the state row.

``checks/`` has the system checks, ``management/`` the commands, ``contrib/`` optional integrations, and ``testing/``
helpers for the tests of projects.

The names in ``__all__`` can be imported from here. They are loaded when they are first used, so that
``bloomguard.filters`` works without Django. ``wsgi``, ``asgi``, ``testing``, ``filters`` and ``contrib`` have public
names of their own; docs/api.md lists all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decorators import guarded
    from .exceptions import BloomGuardError, ConfigurationError, StoreError
    from .guards import Guard, register, registry
    from .guards.cache_aside import aget_or_load, cache_key, get_or_load
    from .lookups import guarded_lookups
    from .metrics import Series, read_series
    from .middleware import BloomGuardMiddleware
    from .signals import false_negative_found, generation_published, guard_fenced, request_blocked
    from .verdicts import Verdict
    from .writes.adding import adding

__version__ = "0.2.0"

__all__ = [
    "BloomGuardError",
    "BloomGuardMiddleware",
    "ConfigurationError",
    "Guard",
    "Series",
    "StoreError",
    "Verdict",
    "adding",
    "aget_or_load",
    "cache_key",
    "false_negative_found",
    "generation_published",
    "get_or_load",
    "guard_fenced",
    "guarded",
    "guarded_lookups",
    "read_series",
    "register",
    "registry",
    "request_blocked",
]

_MODULES = {
    "decorators": ["guarded"],
    "exceptions": ["BloomGuardError", "ConfigurationError", "StoreError"],
    "guards": ["Guard", "register", "registry"],
    "guards.cache_aside": ["aget_or_load", "cache_key", "get_or_load"],
    "lookups": ["guarded_lookups"],
    "metrics": ["Series", "read_series"],
    "middleware": ["BloomGuardMiddleware"],
    "signals": ["false_negative_found", "generation_published", "guard_fenced", "request_blocked"],
    "verdicts": ["Verdict"],
    "writes.adding": ["adding"],
}


def __getattr__(name: str) -> Any:
    """Load a public name; raises :class:`AttributeError` for any other."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
