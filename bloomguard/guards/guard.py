"""The class :class:`Guard`: what a project declares, overrides and calls; and what each option accepts.

A mistake must not stop the site. A system check reports the value, and the guard replaces it by one that lets requests
pass. If the option decides what a key means, the guard answers nothing, and writes fence it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from django.db.models import Model, Q
from django.http import HttpRequest

from ..filters.sizing import check_capacity, check_error_rate
from ..verdicts import Decision, Verdict
from .conditions import check_readable
from .meta import GuardMeta
from .runtime import GuardRuntime

Routes = str | Sequence[str] | Mapping[str, str | Mapping[str, str]]
V = TypeVar("V")

#: A value of ``routes``: find the routes by what the views of the URLconf look up.
AUTO = "auto"


class Guard:
    """One kind of ID: a model, the field or fields that look its rows up, and the routes that carry the ID.

    Register a subclass for a model with :func:`register`. Its options are class attributes.
    """

    #: The guard's name in commands, logs and metrics. If empty, it comes from the class: ``CityBySlugGuard`` is
    #: ``city-by-slug``. A lower-case letter, then up to 99 lower-case letters, digits, dots, dashes and underscores.
    name: str = ""
    #: The field that looks up a row, or a tuple of fields. A query has to compare all of them by equality.
    lookup: str | tuple[str, ...] = "pk"
    #: The URL patterns that the guard may answer before the view runs, by name; ``"auto"`` finds generic views; a
    #: mapping names the keyword arguments: ``{"route": "kwarg"}``, or ``{"route": {"field": "kwarg"}}``. See
    #: docs/routes.md.
    routes: Routes = ()
    #: Which rows exist for the public. The guard answers only queries with the same condition. See
    #: docs/soft-delete.md.
    alive: Q = Q()
    #: The kind of filter: ``"bloom"``; ``"bitmap"``: exact, for integers and dates; ``"cuckoo"``: forgets deleted rows
    #: at once; ``"auto"``: the bitmap if it is smaller, otherwise Bloom. See docs/filters.md.
    filter: str = "auto"
    #: The share of absent IDs that a full filter lets through.
    error_rate: float = 0.001
    #: The number of rows that the filter is built for. ``None``: half as many again as there are at the rebuild, and at
    #: least 1,000.
    capacity: int | None = None
    #: The alias of the store in ``BLOOMGUARD["STORES"]``. See docs/settings.md.
    store: str = "default"
    #: Which tables the table's name means: one (``None``); one in each database, for shards (``"database"``); or one in
    #: each schema of PostgreSQL, for tenants (``"schema"``). See docs/tenants.md.
    scope: str | None = None
    #: How writes reach the filter. ``"statements"``: every ORM write, before its COMMIT; ``"signals"``: ``post_save``
    #: alone, maybe after the COMMIT, and the guard then answers no queries.
    sync: str = "statements"
    #: ``"enforce"``; ``"shadow"``: let everything pass, and count what the guard would have answered. See
    #: docs/verify.md#shadow-mode.
    mode: str = "enforce"
    #: The methods of the requests that the guard answers.
    methods: Sequence[str] = ("GET", "HEAD")
    #: ``False``: ORM queries do not ask the guard; its routes, the door and ``@guarded`` still do.
    lookups: bool = True
    #: Whether the guard may answer its routes before their views run. ``True``: all of them; ``False``: none; ``None``:
    #: bloomguard inspects each view. See docs/routes.md#open-and-closed-views.
    public: bool | None = None

    model: type[Model]

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self.name = kebab(type(self).__name__) if self.name == "" else self.name
        #: The options that have impossible values; system checks report them.
        self._mistakes = _correct(self)
        is_normalized = type(self).normalize is not Guard.normalize
        self._meta = GuardMeta(self, self.normalize if is_normalized else None)
        self._runtime = GuardRuntime(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.model._meta.label}>"

    # -- for projects to override

    def applies(self, request: HttpRequest) -> bool:
        """Return whether the guard may answer this request; return ``False`` to let it pass, for example a preview.

        All other middleware has run already, so ``request.user`` is available. On async sites this method must not
        query the database. If it raises, that is logged once, and the request passes.
        """
        return True

    def normalize(self, value: str) -> str:
        """Return the normal form of a text; override it if the database's collation treats different texts as equal.

        Equal texts must always get the same form. Raise ``ValueError`` if a text has no form: requests for it pass, and
        its rows are not in the filter. ``TypeError``, ``LookupError``, ``ArithmeticError`` and ``AttributeError`` mean
        the same. Any other error counts as temporary: requests pass, and writing such a row fences the guard.
        """
        return value

    def scopes(self) -> Iterable[str]:
        """Return the scopes that a rebuild reads, if the guard has a ``scope``; requests for all others pass.

        They are the aliases of the databases in which the routers allow the table, without replicas, or the schemas
        that have it. Override it to leave some out.
        """
        return () if self.scope is None else self._meta.scopes.found()

    # -- for projects to call

    def verdict(self, value: Any) -> Verdict:
        """Return the verdict on ``value``: a field's value, or for several fields a sequence or mapping of values.

        Accepts values from a URL, converted or not. Never raises: on an error it returns :attr:`Verdict.UNKNOWN`.
        A number that no column can hold is ABSENT, and text with a NUL may be: a query for them may raise an error.
        """
        return self._runtime.decide(value).verdict

    async def averdict(self, value: Any) -> Verdict:
        """Async :meth:`verdict`; never blocks the event loop. Never raises."""
        return (await self._runtime.adecide(value)).verdict

    def filter_existing(self, values: Iterable[V]) -> list[V]:
        """Return the ``values`` that may exist, in their order; values with verdict UNKNOWN are kept.

        Checks them in one round trip to the store. Never raises.
        """
        values = list(values)
        return _possible(values, self._runtime.decide_many(values))

    async def afilter_existing(self, values: Iterable[V]) -> list[V]:
        """Async :meth:`filter_existing`; never blocks the event loop. Never raises."""
        values = list(values)
        return _possible(values, await self._runtime.adecide_many(values))


def _possible(values: Sequence[V], decided: Sequence[Decision]) -> list[V]:
    return [value for value, decision in zip(values, decided) if decision.verdict is not Verdict.ABSENT]


def kebab(class_name: str) -> str:
    """Convert ``CityBySlugGuard`` to ``city-by-slug``."""
    stem = class_name.removesuffix("Guard") or class_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()


# -- what each option accepts


@dataclass(frozen=True)
class Mistake:
    """A value that an option cannot have: ``reason`` continues after the guard's name, ``id`` is that of the check.

    ``decides_keys``: the option decides what a key means, or where the filter is, so that no filter can be trusted.
    """

    id: str
    reason: str
    cure: str
    decides_keys: bool


class _Option(NamedTuple):
    """``takes(value)`` returns whether the value is possible, or raises :class:`ValueError` with the reason if not.

    ``instead`` lets requests pass; ``wants`` is the cure.
    """

    id: str
    takes: Callable[[Any], object]
    instead: Any
    wants: str
    decides_keys: bool = False


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


_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_SIZE = "Remove the line to use the default"
_OPTIONS = {
    "name": _Option(
        "bloomguard.W118", lambda value: _is_text(value) and bool(_NAME.fullmatch(value)), "misnamed",
        "Begin with a lower-case letter; up to 99 lower-case letters, digits, dots, dashes and underscores may follow",
        True,
    ),
    "lookup": _Option(
        "bloomguard.W101", lambda value: _is_text(value) or _is_list(value, _is_text), "pk",
        "Name a field, as in lookup = 'slug', or several: lookup = ('country', 'slug')", True,
    ),
    "alive": _Option("bloomguard.W118", _is_condition, Q(), "Write alive = Q(deleted=False)", True),
    "store": _Option("bloomguard.W103", _is_text, "default", "Name one of BLOOMGUARD['STORES']", True),
    "filter": _Option(
        "bloomguard.W111", _one_of("auto", "bloom", "bitmap", "cuckoo"), "auto",
        "Set one of 'auto', 'bloom', 'bitmap', 'cuckoo'; a bitmap can only contain integers and dates", True,
    ),
    "sync": _Option(
        "bloomguard.W112", _one_of("statements", "signals"), "statements", "Set one of 'statements', 'signals'", True
    ),
    "scope": _Option(
        "bloomguard.W118", _one_of(None, "database", "schema"), None,
        "Set 'schema' if each tenant has a schema, 'database' for shards or a database for each tenant", True,
    ),
    "normalize": _Option("bloomguard.W118", _is_function, None, "Write def normalize(self, value): return ...", True),
    "routes": _Option(
        "bloomguard.W102", _are_routes, (),
        "Write routes = ['city-detail'], routes = {'city-detail': 'kwarg'} or routes = 'auto'",
    ),
    "methods": _Option("bloomguard.W118", _are_methods, (), "Write methods = ['GET', 'HEAD'], in capitals"),
    "mode": _Option("bloomguard.W114", _one_of("enforce", "shadow"), "shadow", "Set one of 'enforce', 'shadow'"),
    "public": _Option("bloomguard.W118", _one_of(True, False, None), False, "Set True, False or None"),
    "lookups": _Option("bloomguard.W116", _one_of(True, False), False, "Set True or False"),
    "applies": _Option("bloomguard.W118", _is_function, None, "Write def applies(self, request): return ..."),
    "error_rate": _Option("bloomguard.W104", check_error_rate, 0.001, _SIZE),
    "capacity": _Option("bloomguard.W104", lambda value: value is None or check_capacity(value), None, _SIZE),
}  # fmt: skip
#: What happens meanwhile, if it is worth saying.
_MEANWHILE = {"mode": ", so every request passes", "lookups": ", neither True nor False"}
#: The cure of a text where another value belongs.
_CURES = {"lookups": "Write lookup = {!r} if you mean the field", "routes": "Write routes = [{!r}]"}


def _correct(guard: Guard) -> list[Mistake]:
    """Give ``guard`` a harmless value for each option that has an impossible one; return the mistakes."""
    mistakes = []
    for name, option in _OPTIONS.items():
        value = getattr(guard, name)
        reason = f"{name} is {_shown(value)}{_MEANWHILE.get(name, '')}"
        try:
            if option.takes(value):
                continue
        except ValueError as error:
            reason = str(error)
        except Exception:  # noqa: S110  # of the value's own methods
            pass
        cure = _CURES[name].format(value) if name in _CURES and _is_text(value) else option.wants
        mistakes.append(Mistake(option.id, reason, cure, option.decides_keys))
        setattr(guard, name, option.instead)
    return mistakes


def _shown(value: Any) -> str:
    """Return the value as text; only the type of one whose ``repr()`` may run a query, as that of a queryset."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, (list, tuple)):
        parts = [value]
    plain = all(isinstance(each, (str, int, float, type, type(None))) for each in parts)
    return repr(value) if plain else f"a {type(value).__name__}"
