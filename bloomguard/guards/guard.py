"""The class :class:`Guard`: what a project declares, overrides and calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.db.models import Model, Q
from django.http import HttpRequest

from ..state.verdicts import Decision, Verdict
from .meta import GuardMeta
from .options import correct
from .runtime import GuardRuntime

Routes = str | Sequence[str] | Mapping[str, str | Mapping[str, str]]
V = TypeVar("V")


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
        self._mistakes = correct(self)
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


def has_own_applies(guard: Guard) -> bool:
    """Return whether the project has overridden ``applies``, in the class or on the guard itself."""
    return getattr(guard.applies, "__func__", None) is not Guard.applies


def kebab(class_name: str) -> str:
    """Convert ``CityBySlugGuard`` to ``city-by-slug``."""
    stem = class_name.removesuffix("Guard") or class_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", stem).lower()
