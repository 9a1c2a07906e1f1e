"""What each option of a guard accepts, and what it gets instead of a mistake.

A mistake must not stop the site. A system check reports the value, and the guard replaces it by one that lets requests
pass. If the option decides what a key means, the guard answers nothing, and writes fence it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Q

from ..filters.sizing import check_capacity, check_error_rate
from .conditions import check_readable

if TYPE_CHECKING:
    from .guard import Guard

#: A value of ``routes``: find the routes by what the views of the URLconf look up.
AUTO = "auto"


class Option(NamedTuple):
    """``takes(value)`` returns whether the value is possible, or raises :class:`ValueError` with the reason if not.

    ``id`` is that of the check; ``instead`` lets requests pass. ``decides_keys``: the option decides what a key means,
    or where the filter is, so that with a mistake no filter can be trusted. ``reason`` is given to the option of a
    mistake, and continues after the guard's name.
    """

    id: str
    takes: Callable[[Any], object]
    instead: Any
    cure: str
    decides_keys: bool = False
    reason: str = ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any, takes: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not _is_text(value) and all(map(takes, value))


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__qualname__")


def _is_route(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, Mapping) and all(map(_is_text, [*value, *value.values()])))


def _are_routes(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_text, value)) and all(map(_is_route, value.values()))
    return _one_of(AUTO)(value) or _is_list(value, _is_text)


def _are_methods(value: Any) -> bool:
    return bool(value) and _is_list(value, lambda method: _is_text(method) and method.isupper())


def _is_condition(value: Any) -> bool:
    if isinstance(value, Q):
        check_readable(value)
    return isinstance(value, Q)


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is each or (_is_text(value) and value == each) for each in values)


NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_SIZE = "Remove the line to use the default"
_OPTIONS = {
    "name": Option(
        "bloomguard.W118", lambda value: _is_text(value) and bool(NAME.fullmatch(value)), "misnamed",
        "Begin with a lower-case letter; up to 99 lower-case letters, digits, dots, dashes and underscores may follow",
        True,
    ),
    "lookup": Option(
        "bloomguard.W101", lambda value: _is_text(value) or _is_list(value, _is_text), "pk",
        "Name a field, as in lookup = 'slug', or several: lookup = ('country', 'slug')", True,
    ),
    "alive": Option("bloomguard.W118", _is_condition, Q(), "Write alive = Q(deleted=False)", True),
    "store": Option("bloomguard.W103", _is_text, "default", "Name one of BLOOMGUARD['STORES']", True),
    "filter": Option(
        "bloomguard.W111", _one_of("auto", "bloom", "bitmap", "cuckoo"), "auto",
        "Set one of 'auto', 'bloom', 'bitmap', 'cuckoo'; a bitmap can only contain integers and dates", True,
    ),
    "sync": Option(
        "bloomguard.W112", _one_of("statements", "signals"), "statements", "Set one of 'statements', 'signals'", True
    ),
    "scope": Option(
        "bloomguard.W118", _one_of(None, "database", "schema"), None,
        "Set 'schema' if each tenant has a schema, 'database' for shards or a database for each tenant", True,
    ),
    "normalize": Option("bloomguard.W118", _is_function, None, "Write def normalize(self, value): return ...", True),
    "routes": Option(
        "bloomguard.W102", _are_routes, (),
        "Write routes = ['city-detail'], routes = {'city-detail': 'kwarg'} or routes = 'auto'",
    ),
    "methods": Option("bloomguard.W118", _are_methods, (), "Write methods = ['GET', 'HEAD'], in capitals"),
    "mode": Option("bloomguard.W114", _one_of("enforce", "shadow"), "shadow", "Set one of 'enforce', 'shadow'"),
    "public": Option("bloomguard.W118", _one_of(True, False, None), False, "Set True, False or None"),
    "lookups": Option("bloomguard.W116", _one_of(True, False), False, "Set True or False; lookup names the field"),
    "applies": Option("bloomguard.W118", _is_function, None, "Write def applies(self, request): return ..."),
    "error_rate": Option("bloomguard.W104", check_error_rate, 0.001, _SIZE),
    "capacity": Option("bloomguard.W104", lambda value: value is None or check_capacity(value), None, _SIZE),
}  # fmt: skip


def correct(guard: Guard) -> list[Option]:
    """Give ``guard`` a harmless value for each option that has an impossible one; return these options."""
    mistakes = []
    for name, option in _OPTIONS.items():
        value = getattr(guard, name)
        reason = f"{name} is {_shown(value)}"
        try:
            if option.takes(value):
                continue
        except ValueError as error:
            reason = str(error)
        except Exception:  # noqa: S110  # of the value's own methods
            pass
        mistakes.append(option._replace(reason=reason))
        setattr(guard, name, option.instead)
    return mistakes


def _shown(value: Any) -> str:
    """Return the value as text; only the type of one whose ``repr()`` may run a query, as that of a queryset."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, (list, tuple)):
        parts = [value]
    plain = all(isinstance(each, (str, int, float, type, type(None))) for each in parts)
    return repr(value) if plain else f"a {type(value).__name__}"
