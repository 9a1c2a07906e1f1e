"""bloomguard: answer requests for IDs that do not exist, before any cache or database query.

A guard (``guards/``) answers at three places: at the door, before Django (``wsgi``, ``asgi``, ``door/``); at the route,
before the view (``middleware``, ``decorators``, ``routes/``); and at the lookup, when the ORM is about to send a SELECT
for one row (``lookups/``). ``state/`` knows which filter is active, ``stores/`` hold it, ``filters/`` look at its bits.
``writes/`` add the keys of written rows before the COMMIT; ``rebuild/`` makes new filters. CONTRIBUTING.md follows a
request, a write and a rebuild from file to file.

The names in ``__all__`` can be imported from here. They are loaded when they are first used, so that
``bloomguard.filters`` works without Django. ``wsgi``, ``asgi``, ``testing``, ``filters`` and ``contrib`` have public
names of their own; docs/api.md lists all of them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decorators import guarded
    from .exceptions import BloomGuardError, ConfigurationError, StoreError
    from .guards import Guard, register, registry
    from .lookups import guarded_lookups
    from .lookups.cache_aside import aget_or_load, cache_key, get_or_load
    from .metrics import Series, read_series
    from .middleware import BloomGuardMiddleware
    from .signals import false_negative_found, generation_published, guard_fenced, request_blocked
    from .state.verdicts import Verdict
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
    "lookups.cache_aside": ["aget_or_load", "cache_key", "get_or_load"],
    "lookups": ["guarded_lookups"],
    "metrics": ["Series", "read_series"],
    "middleware": ["BloomGuardMiddleware"],
    "signals": ["false_negative_found", "generation_published", "guard_fenced", "request_blocked"],
    "state.verdicts": ["Verdict"],
    "writes.adding": ["adding"],
}


def __getattr__(name: str) -> Any:
    """Load a public name; raises :class:`AttributeError` for any other."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names only when they can be loaded: tools such as freezegun load all that they find."""
    return sorted({*globals(), *(__all__ if f"{__name__}.models" in sys.modules else ())})
