"""The class :class:`Guard`: its options, its keys and its verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models import Model, Q
from django.http import HttpRequest

from ..conf import settings
from ..exceptions import ConfigurationError
from ..filters.kinds import KINDS
from ..log_once import LogOnce
from ..state.active_filter import ActiveFilter
from ..verdicts import ABSENT, DISABLED, ERROR, MAYBE, OUT_OF_RANGE, SHADOW, UNKEYABLE, Decision, Verdict
from . import options, spot_checks, tallies
from .cache_aside import CacheAside
from .conditions import Unstable, doubts, in_words
from .fetching import Fetching
from .keys import KeyMaker, OutOfRange, Uncertain, Unkeyable
from .verdict_log import listeners, notify

#: A value of ``routes``: find the routes by what the views of the URLconf look up.
AUTO = "auto"

Routes = str | Sequence[str] | Mapping[str, str | Mapping[str, str]]


class Guard(Fetching, CacheAside):
    """One kind of ID: a model, the field or fields that look its rows up, and the routes that carry the ID.

    Options are class attributes:

    ``lookup``: ``str`` or tuple of ``str``, default ``"pk"``
        The field by which views look up a row, or a tuple of fields.
    ``alive``: ``Q``, default ``Q()``
        The rows that the public can see, as for soft delete. A rebuild leaves the other rows out of the filter.

    ``lookups``: ``bool``, default ``True``
        Whether the guard answers ORM queries for one row, inside requests of its ``methods``.
    ``routes``: ``"auto"``, sequence or mapping, default ``()``
        Names of URL patterns at which the guard may answer before the view runs. ``"auto"`` takes every pattern whose
        class-based view shows one object of the model by ``lookup``. If the name of a kwarg does not follow from the
        lookup, use a mapping: ``{"route": "kwarg"}``, or ``{"route": {"field": "kwarg"}}`` for several fields.
    ``public``: ``bool`` or ``None``, default ``None``
        Whether the ``routes`` may be answered before their views run: all (``True``) or none (``False``). With
        ``None``, bloomguard inspects each view.
    ``methods``: sequence of ``str``, default ``("GET", "HEAD")``
        The HTTP methods of the requests that the guard may answer.
    ``mode``: ``str``, default ``"enforce"``
        ``"enforce"``, or ``"shadow"``: every request passes, and would-be 404s, true and false, are counted.

    ``filter``: ``str``, default ``"auto"``
        ``"bloom"``, ``"bitmap"`` (exact; for integers and dates), ``"cuckoo"``, or ``"auto"``: the bitmap if it is
        smaller, else the Bloom filter.
    ``error_rate``: ``float``, default 0.001
        The share of absent IDs that may pass as false positives.
    ``capacity``: ``int`` or ``None``, default ``None``
        The number of rows that the filter has room for. With ``None``, a rebuild makes room for 1.5 times the rows.
    ``store``: ``str``, default ``"default"``
        The alias of a store in ``BLOOMGUARD["STORES"]``.
    ``sync``: ``str``, default ``"statements"``
        How writes reach the filter: ``"statements"`` follows every write of the ORM; ``"signals"`` follows only
        ``save()``, and in autocommit mode adds the key after the commit.
    ``name``: ``str``, default the class name in kebab case
        The guard's name. The default of ``CityBySlugGuard`` is ``"city-by-slug"``.
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

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self._check_due = False
        self._log = LogOnce()
        self.name = kebab(type(self).__name__) if self.name == "" else self.name
        #: The options that have impossible values; system checks report them.
        self.mistakes = options.correct(self)
        self.tallies = tallies.counts.of(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.model._meta.label}>"

    # -- for projects to override

    def applies(self, request: HttpRequest) -> bool:
        """Return whether the guard may answer this request; return ``False`` to let it pass, for example a preview.

        All other middleware has run already, so ``request.user`` is available. On async sites this method must not
        query the database.
        """
        return True

    def normalize(self, value: str) -> str:
        """Return the normal form of a text; override it if the database's collation treats different texts as equal.

        Equal texts must always get the same form. Raise ``ValueError`` if a text has no form: requests for it pass, and
        its rows are not in the filter. ``TypeError``, ``LookupError``, ``ArithmeticError`` and ``AttributeError`` mean
        the same. Any other error counts as temporary: requests pass, and writing such a row fences the guard.
        """
        return value

    # -- what a key is

    @cached_property
    def fields(self) -> tuple[models.Field[Any, Any], ...]:
        """The model fields of ``lookup``; raises :class:`ConfigurationError` with a missing one, or a mistake."""
        for mistake in self.mistakes:
            if mistake.decides_keys:
                raise ConfigurationError(mistake.reason)
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
                raise ConfigurationError(f"{self.model._meta.label}.{name} is not a column")
        if not found:
            raise ConfigurationError(f"lookup is {self.lookup!r}; it has to name at least one field")
        return tuple(found)

    @cached_property
    def keys(self) -> KeyMaker:
        """The maker of the guard's keys; raises :class:`ConfigurationError` if a field cannot be a key."""
        normalize = self.normalize if type(self).normalize is not Guard.normalize else None
        try:
            return KeyMaker(self.fields, normalize)
        except TypeError as error:
            raise ConfigurationError(str(error)) from error

    @property
    def tables(self) -> set[str]:
        """The guard's table, parent tables with a column of the key or of ``alive``, and the tables between them."""
        try:
            columns = [*self.fields, *(self.model._meta.get_field(name) for name in self.alive_fields)]
        except (ConfigurationError, FieldDoesNotExist):
            # A system check reports the mistake. Until it is corrected, writes fence the guard: its filter lacks them.
            columns = [model._meta.pk for model in (self.model, *self.model._meta.all_parents)]
        models = {field.model for field in columns}
        for model in list(models):
            models.update(self.model._meta.get_base_chain(model) or ())
        return {self.model._meta.db_table, *(model._meta.db_table for model in models)}

    @property
    def alive_fields(self) -> set[str]:
        """The names of the model fields in ``alive``, on either side of a comparison."""
        names = self.alive.referenced_base_fields
        return names - {"pk"} | {field.name for field in self.model._meta.pk_fields if "pk" in names}

    @property
    def definition(self) -> str:
        """What a key of this guard means, as text: a filter that was built for another text is never queried."""
        columns = ",".join(f"{field.column}:{kind}" for field, kind in zip(self.fields, self.keys.kinds))
        normalize = type(self).normalize.__qualname__
        try:
            alive = in_words(self.alive)
        except Unstable:  # doubts() reports it as well
            alive = ""
        # Discarding a key is only safe if every process counts its adds.
        counted = "|counted" if self.discards else ""
        # No filter is built for such a condition; one that another release has built must not be queried.
        uncertain = "|uncertain" if next(doubts(self.model, self.alive), "") else ""
        return f"{self.name}|{self.model._meta.db_table}({columns})|{alive}|{normalize}{counted}{uncertain}"

    @property
    def discards(self) -> bool:
        """Whether the keys of rows that are deleted, or no longer alive, are discarded at once."""
        kind = KINDS.get(self.filter)
        return kind is not None and kind.supports_discard and self.sync == "statements"

    @cached_property
    def active_filter(self) -> ActiveFilter:
        """This process's view of the guard's active filter."""
        return ActiveFilter(
            self.name,
            store_alias=self.store,
            definition=self.definition,
            width=self.keys.width,
            counted=self.discards,
        )

    # -- verdicts

    def decide(self, value: Any, key: bytes | None = None) -> Decision:
        """Return the verdict on ``value`` with its reason; pass its ``key`` if you have made it already.

        ``value`` is as for :meth:`verdict`. May read the state rows, at most once per second and process.
        """
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if tallies.drawn() else 0
        try:
            active = self.active_filter
            if key is None:
                key = self.keys.key(value)
            decision = active.ask_leased(key) or active.ask(key)
        except Exception as error:
            decision = self._decision_for(error)
        if began:
            self.tallies.time(began)
        if decision is MAYBE and not listeners:  # the most frequent case, kept short
            self.tallies["maybe"]()
            return decision
        return self._finish(value, decision)

    def decide_now(self, value: Any) -> Decision | None:
        """Return what :meth:`decide` does, without I/O; ``None`` if the state rows or a filter must be read first."""
        if not settings.is_enabled:
            return DISABLED
        began = perf_counter_ns() if tallies.drawn() else 0
        try:
            decision = self.active_filter.ask_now(self.keys.key(value))
        except Exception as error:
            decision = self._decision_for(error)
        if decision is None:
            return None
        if self._is_check_due(decision):
            return None
        if began:
            self.tallies.time(began)
        return self._record(value, decision)

    def _decision_for(self, error: Exception) -> Decision:
        """Map an exception to a decision."""
        if isinstance(error, (Unkeyable, Uncertain)):
            return UNKEYABLE
        if isinstance(error, OutOfRange):
            return OUT_OF_RANGE
        self._log_once(error)
        return ERROR

    def _finish(self, value: Any, decision: Decision) -> Decision:
        """Count a decision, after a spot check of an ABSENT if one is due. May query the database."""
        if decision is ABSENT and (self.is_shadow or self._check_due or spot_checks.drawn()):
            self._check_due = False
            decision = spot_checks.checks.check(self, value)
        return self._record(value, decision)

    def _is_check_due(self, decision: Decision) -> bool:
        """Return whether a spot check is due; then the next caller that may do I/O has to run it."""
        if decision is not ABSENT:
            return False
        if not self._check_due:
            self._check_due = spot_checks.checks.is_due(self) if self.is_shadow else spot_checks.drawn()
        return self._check_due

    def _record(self, value: Any, decision: Decision) -> Decision:
        """Count a decision and call the listeners; in shadow mode ABSENT becomes ``SHADOW``."""
        if decision.verdict is Verdict.ABSENT and self.is_shadow:
            decision = SHADOW
        self.tallies[decision.reason]()
        if listeners:
            notify(self, value, decision)
        return decision

    @property
    def is_shadow(self) -> bool:
        """Whether the guard is in shadow mode: set in the admin, else by ``mode``."""
        return (self.active_filter.mode or self.mode) != "enforce"

    def _log_once(self, error: Exception) -> None:
        self._log.error(error, "bloomguard passes requests to %s because of an internal error", self.name)

    # -- writing

    def add(self, *values: Any) -> bool:
        """Add values that exist, or are about to; return ``False`` if not every add could be confirmed."""
        return self.active_filter.add([self.keys.key(value) for value in values])

    @cached_property
    def attnames(self) -> tuple[str, ...]:
        """The attribute names of the lookup's fields, such as ``city_id`` for a foreign key."""
        return tuple(field.attname for field in self.fields)

    def value_of(self, row: Model) -> Any:
        """Return the value of a row's lookup field, or a tuple for several fields."""
        values = tuple(getattr(row, name) for name in self.attnames)
        return values[0] if len(values) == 1 else values

    def rows(self) -> models.QuerySet[Any]:
        """Return the rows that the public can see, unordered."""
        # Do not use the model's managers: one that hides rows would keep them out of the filter.
        return models.QuerySet(self.model).filter(self.alive)

    # -- routes

    def kwargs_for(self, route: str, captured: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the captured kwargs that carry the lookup's values, in the order of :attr:`fields`.

        Raises :class:`ConfigurationError` if a field has no such kwarg.
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
                    f"route {route!r} captures {', '.join(captured) or 'nothing'}; expected {' or '.join(wanted)}"
                )
            chosen.append(kwarg)
        return tuple(chosen)

    def _usual_kwargs(self, field: models.Field[Any, Any]) -> list[str]:
        names = [field.name, field.attname]
        if len(self.fields) == 1 and (field.primary_key or field is self.model._meta.pk):
            model_name = self.model._meta.model_name
            names = ["pk", *names, f"{model_name}_pk", f"{model_name}_id"]
        return list(dict.fromkeys(names))


def kebab(class_name: str) -> str:
    """Convert ``CityBySlugGuard`` to ``city-by-slug``."""
    stem = class_name.removesuffix("Guard") or class_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()
