"""Guards: one for each kind of ID to protect, declared in an app's ``guards.py`` and found as ``admin.py`` is.

@register(City)
class CityGuard(Guard):
    lookup = "pk"
    routes = ["city-detail"]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from time import perf_counter_ns
from typing import Any, ClassVar, TypeVar

from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models import Model, Q
from django.http import HttpRequest

from . import spot_checks
from .alive import Unstable, doubts, in_words
from .counting import counts
from .exceptions import ConfigurationError
from .filters.kinds import KINDS
from .hearing import hear, listeners
from .keys import KeyMaker, OutOfRange, Uncertain, Unkeyable
from .live import LiveFilter
from .log_once import LogOnce
from .lookups.cache_aside import CacheAside
from .lookups.fetching import Fetching
from .verdicts import ABSENT, ERROR, MAYBE, OUT_OF_RANGE, SHADOW, UNKEYABLE, Decision, Verdict

__all__ = ["Guard", "Verdict", "guards", "register", "registry"]

#: ``routes`` that are found by what the URLconf's views look up.
AUTO = "auto"

Routes = str | Sequence[str] | Mapping[str, str | Mapping[str, str]]


class Guard(Fetching, CacheAside):
    """One kind of ID: a model, the field or fields that look it up, and the routes that carry it.

    ``lookup`` is ``"pk"``, a field's name, or a tuple of names. ``routes`` are names of URL patterns, or ``"auto"``,
    which takes every pattern whose class-based view shows one object of the model by that lookup; a mapping
    ``{"route": "kwarg"}`` or, for several fields, ``{"route": {"field": "kwarg"}}`` where the kwarg's name does not
    follow from the lookup. ``filter`` is ``"bloom"``, ``"bitmap"`` (exact, for integers and dates), ``"cuckoo"``, or
    ``"auto"``: the bitmap where it is the smaller one, else Bloom. ``alive`` says which rows exist for the public
    (soft delete). ``sync`` is ``"statements"`` (every write of the ORM) or ``"signals"`` (``save()`` alone, and not
    before the commit). ``mode`` is ``"enforce"``, or ``"shadow"``: then every request passes, and what would have been
    a false 404 is counted. ``capacity`` counts rows; by default a rebuild leaves room for half as many again as
    there are. ``lookups`` says that the ORM's queries for one row ask the guard, inside requests of its ``methods``.
    ``public`` says of all ``routes`` that they may be answered before their views run (``True``) or must not be
    (``False``); by default bloomguard looks at each view.
    """

    name: str = ""
    lookup: str | tuple[str, ...] = "pk"
    filter: str = "auto"
    routes: Routes = ()
    error_rate: float = 0.001
    capacity: int | None = None
    alive: Q = Q()
    store: str = "default"
    sync: str = "statements"
    mode: str = "enforce"
    methods: Sequence[str] = ("GET", "HEAD")
    lookups: bool = True
    public: bool | None = None

    model: type[Model]
    _known_names: ClassVar[re.Pattern[str]] = re.compile(r"[a-z][a-z0-9_.-]{0,99}")

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self._owes_check = False
        self._log = LogOnce()
        self.name = self.name or _kebab(type(self).__name__)
        if not self._known_names.fullmatch(self.name):
            raise ConfigurationError(
                f"{type(self).__name__}: name is {self.name!r}; it has to begin with a lower-case letter and go on "
                "with up to 99 lower-case letters, digits, dots, dashes and underscores"
            )
        self.tallies = counts.counts.of(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.model._meta.label}>"

    # -- for projects to override

    def applies(self, request: HttpRequest) -> bool:
        """Whether this request may be answered by the guard; ``False`` lets it pass (previews).

        Every other middleware has had the request: ``request.user`` is there. On async sites this must not touch the
        database.
        """
        return True

    def normalize(self, value: str) -> str:
        """Text as the database compares it; needed where its collation takes different strings for equal.

        Equal texts get one form, always. ``ValueError``, or what Python raises for a value that is not as expected,
        says that the text has none: requests for it pass, and its rows are in no filter. Any other error is taken for
        a failure of the moment: requests pass, and a row that is written meanwhile fences the guard.
        """
        return value

    # -- what a key is

    @cached_property
    def fields(self) -> tuple[models.Field[Any, Any], ...]:
        """The model's fields behind ``lookup``; raises :class:`ConfigurationError` that names the missing one."""
        names = (self.lookup,) if isinstance(self.lookup, str) else tuple(self.lookup)
        found: list[models.Field[Any, Any]] = []
        for name in names:
            try:
                field = self.model._meta.pk if name == "pk" else self.model._meta.get_field(name)
            except FieldDoesNotExist as error:
                raise ConfigurationError(f"{self.model._meta.label} has no field {name!r}") from error
            if isinstance(field, getattr(models, "CompositePrimaryKey", ())):
                found += field.fields  # type: ignore[union-attr]
            elif isinstance(field, models.Field) and field.concrete:
                found.append(field)
            else:
                raise ConfigurationError(f"{self.model._meta.label}.{name} is no column")
        if not found:
            raise ConfigurationError(f"lookup is {self.lookup!r}; it has to name one field or more")
        return tuple(found)

    @cached_property
    def keys(self) -> KeyMaker:
        """Makes keys of values; raises :class:`ConfigurationError` if a field cannot be a key."""
        normalize = self.normalize if type(self).normalize is not Guard.normalize else None
        try:
            return KeyMaker(self.fields, normalize)
        except TypeError as error:
            raise ConfigurationError(str(error)) from error

    @property
    def tables(self) -> set[str]:
        """The guard's own table, and its parents' that hold a column of the key or of ``alive``, or lie between."""
        try:
            columns = [*self.fields, *(self.model._meta.get_field(name) for name in self.alive_fields)]
        except (ConfigurationError, FieldDoesNotExist):  # a system check says so
            return set()
        models = {field.model for field in columns}
        for model in list(models):
            models.update(self.model._meta.get_base_chain(model) or ())
        return {self.model._meta.db_table, *(model._meta.db_table for model in models)}

    @property
    def alive_fields(self) -> set[str]:
        """The names of the model's fields that decide who is alive, on either side of a comparison."""
        names = self.alive.referenced_base_fields
        return names - {"pk"} | {field.name for field in self.model._meta.pk_fields if "pk" in names}

    @property
    def definition(self) -> str:
        """What a key of this guard stands for, in words: a filter built for other words is never asked."""
        columns = ",".join(f"{field.column}:{kind}" for field, kind in zip(self.fields, self.keys.kinds))
        normalize = type(self).normalize.__qualname__
        try:
            alive = in_words(self.alive)
        except Unstable:  # which is uncertain, too
            alive = ""
        # Whoever takes keys out relies on everybody else to have counted them.
        counted = "|counted" if self.discards else ""
        # Nothing is built for such a condition; a filter that another release has built is not asked.
        uncertain = "|uncertain" if next(doubts(self.model, self.alive), "") else ""
        return f"{self.name}|{self.model._meta.db_table}({columns})|{alive}|{normalize}{counted}{uncertain}"

    @property
    def discards(self) -> bool:
        """Whether rows that are deleted, or no longer alive, leave the filter at once."""
        kind = KINDS.get(self.filter)
        return kind is not None and kind.supports_discard and self.sync == "statements"

    @cached_property
    def live(self) -> LiveFilter:
        """The guard's filter, as this process lives with it."""
        return LiveFilter(
            self.name,
            store_alias=self.store,
            definition=self.definition,
            width=self.keys.width,
            counted=self.discards,
        )

    # -- asking

    def decide(self, value: Any, key: bytes | None = None) -> Decision:
        """The verdict on ``value``, as :meth:`verdict` takes it, with its reason; ``key`` is its key, if made already.

        May read the state rows, at most once a second and process.
        """
        began = perf_counter_ns() if counts.drawn() else 0
        try:
            live = self.live
            if key is None:
                key = self.keys.key(value)
            decision = live.ask_leased(key) or live.ask(key)
        except Exception as error:
            decision = self._undecided(error)
        if began:
            self.tallies.time(began)
        if decision is MAYBE and not listeners:  # the normal request: no more code than it takes
            self.tallies["maybe"]()
            return decision
        return self._concluded(value, decision)

    def decide_now(self, value: Any) -> Decision | None:
        """The same without waiting; ``None`` if that needs the state rows, or a filter, read first."""
        began = perf_counter_ns() if counts.drawn() else 0
        try:
            decision = self.live.ask_now(self.keys.key(value))
        except Exception as error:
            decision = self._undecided(error)
        if decision is None:
            return None
        if self._owes(decision):
            return None
        if began:
            self.tallies.time(began)
        return self._told(value, decision)

    def _undecided(self, error: Exception) -> Decision:
        """What a value is that no key could be made of, or nobody could be asked for."""
        if isinstance(error, (Unkeyable, Uncertain)):
            return UNKEYABLE
        if isinstance(error, OutOfRange):
            return OUT_OF_RANGE
        self._say_once(error)
        return ERROR

    def _concluded(self, value: Any, decision: Decision) -> Decision:
        """Count a decision. Now and then an absence is held against the database."""
        if decision is ABSENT and (self.is_shadow or self._owes_check or spot_checks.drawn()):
            self._owes_check = False
            decision = spot_checks.checks.check(self, value)
        return self._told(value, decision)

    def _owes(self, decision: Decision) -> bool:
        """Whether an absence is to be held against the database: by whoever asks next where waiting is allowed."""
        if decision is not ABSENT:
            return False
        if not self._owes_check:
            self._owes_check = spot_checks.checks.is_due(self) if self.is_shadow else spot_checks.drawn()
        return self._owes_check

    def _told(self, value: Any, decision: Decision) -> Decision:
        """Count a decision, which a shadow keeps to itself."""
        if decision.verdict is Verdict.ABSENT and self.is_shadow:
            decision = SHADOW
        self.tallies[decision.reason]()
        if listeners:
            hear(self, value, decision)
        return decision

    @property
    def is_shadow(self) -> bool:
        """Whether everything passes, and is only compared with what the guard would have answered.

        As somebody has switched it in the admin, else as ``mode`` says.
        """
        return (self.live.mode or self.mode) != "enforce"

    def _say_once(self, error: Exception) -> None:
        self._log.error(error, "bloomguard passes requests to %s because of an error of its own", self.name)

    # -- writing

    def add(self, *values: Any) -> bool:
        """Add values that exist, or are about to; ``False`` if the filter could not be proved to have them all."""
        return self.live.add([self.keys.key(value) for value in values])

    @cached_property
    def attnames(self) -> tuple[str, ...]:
        """The names under which a row holds the looked-up columns' own values."""
        return tuple(field.attname for field in self.fields)

    def value_of(self, row: Model) -> Any:
        """The looked-up value of a row: one value, or a tuple for several fields."""
        values = tuple(getattr(row, name) for name in self.attnames)
        return values[0] if len(values) == 1 else values

    def rows(self) -> models.QuerySet[Any]:
        """The rows that exist for the public, unordered."""
        # No manager of the model's: one that hides rows would hide them from the filter too.
        return models.QuerySet(self.model).filter(self.alive)

    # -- routes

    def kwargs_for(self, route: str, captured: Iterable[str]) -> tuple[str, ...]:
        """Which of a pattern's captured kwargs carry the lookup's values, in the order of :attr:`fields`.

        Raises :class:`ConfigurationError` if that cannot be told.
        """
        captured = list(captured)
        named = self.routes.get(route, {}) if isinstance(self.routes, Mapping) else {}
        if isinstance(named, str):
            named = {self.fields[0].name: named}
        chosen = []
        for field in self.fields:
            wanted = [named[field.name]] if field.name in named else self._usual_kwargs(field)
            kwarg = next((name for name in wanted if name in captured), None)
            if kwarg is None:
                raise ConfigurationError(
                    f"route {route!r} captures {', '.join(captured) or 'nothing'}; none of it is {' or '.join(wanted)}"
                )
            chosen.append(kwarg)
        return tuple(chosen)

    def _usual_kwargs(self, field: models.Field[Any, Any]) -> list[str]:
        names = [field.name, field.attname]
        if len(self.fields) == 1 and (field.primary_key or field is self.model._meta.pk):
            model_name = self.model._meta.model_name
            names = ["pk", *names, f"{model_name}_pk", f"{model_name}_id"]
        return list(dict.fromkeys(names))


class Registry:
    """The project's guards, by name."""

    def __init__(self) -> None:
        self._guards: dict[str, Guard] = {}
        #: Names that were registered a second time, which a system check reports.
        self.clashes: list[Guard] = []
        #: Counts changes, so that tables made from the registry know when to be made anew.
        self.version = 0
        #: The HTTP methods of the requests that any guard answers.
        self.methods: frozenset[str] = frozenset()
        #: Called after each change.
        self.listeners: list[Callable[[], None]] = []
        #: Imports the apps' ``guards.py``, for who asks for the guards while apps are being made ready.
        self.discover: Callable[[], None] | None = None

    def add(self, guard: Guard) -> None:
        """Take ``guard`` in, unless its name is taken: then it is one of :attr:`clashes`."""
        if guard.name in self._guards:
            self.clashes.append(guard)
            return
        self._guards[guard.name] = guard
        self.changed()

    def remove(self, guard: Guard) -> None:
        """Let ``guard`` go; nothing happens if it is not here."""
        if self._guards.get(guard.name) is guard:
            del self._guards[guard.name]
            self.changed()

    def changed(self) -> None:
        """Tell all that was made from the registry that it is out of date."""
        self.version += 1
        self.methods = frozenset(method for guard in self._guards.values() for method in guard.methods)
        for listen in self.listeners:
            listen()

    def __getitem__(self, name: str) -> Guard:
        """The guard ``name``; raises :class:`ConfigurationError` that lists those there are."""
        try:
            return self._guards[name]
        except KeyError:
            known = ", ".join(sorted(self._guards)) or "none: an app's guards.py registers them"
            raise ConfigurationError(f"there is no guard {name!r}; known are {known}") from None

    def __iter__(self) -> Iterator[Guard]:
        discover, self.discover = self.discover, None
        if discover is not None:
            discover()
        return iter(list(self._guards.values()))

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """An error in the block undoes what it has registered, and is swallowed: its modules are imported again."""
        before = dict(self._guards), list(self.clashes)
        try:
            yield
        except Exception:
            self._guards, self.clashes = before
            self.changed()

    def __len__(self) -> int:
        return len(self._guards)


registry = Registry()
#: The registry as views ask for it: ``guards["city"].verdict(7)``.
guards = registry

G = TypeVar("G", bound=type[Guard])


def register(model: type[Model]) -> Callable[[G], G]:
    """Register a guard class for ``model``, as a class decorator."""

    def decorate(guard: G) -> G:
        registry.add(guard(model))
        return guard

    return decorate


def _kebab(class_name: str) -> str:
    """``CityBySlugGuard`` -> ``city-by-slug``."""
    stem = class_name.removesuffix("Guard") or class_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()
