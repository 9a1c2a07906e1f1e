"""Explain how guards answer one path, and why: the command ``explain_guard``.

Each guard decides twice, so that the timings show a process that has just started and one with warm caches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError
from django.forms.models import model_to_dict
from django.urls import Resolver404, ResolverMatch, resolve
from django.utils import translation

from .. import conf
from ..exceptions import BloomGuardError, ConfigurationError
from ..filters import FilterError
from ..guards import Guard, registry
from ..guards.fields import may_raise
from ..guards.keys import NoScope, Uncertain, unwrapped
from ..guards.runtime import decision_for
from ..rebuild.plan import open_active
from ..state.table import LEASE_SECONDS, StateTable
from ..verdicts import DISABLED, ERROR, SHADOW, Decision, Verdict
from ..writes.fencing import table_of
from .listing import DOOR, NOWHERE, Row, rows_of_pattern, takes_id
from .patterns import Pattern
from .table import NO_ID, RouteTable, kwargs_for, kwargs_of_view, table_for

#: The reason of each decision: what it means and how to fix it.
MEANING = {
    "absent": "the filter does not contain it",
    "out of range": "no column can hold it",
    "remembered": "a false positive of the filter: a recent query found no such row",
    "maybe": "the filter contains it, or this is a false positive",
    "unkeyable": "it is not a valid value for the lookup's field",
    "cold": "there is no filter yet; run rebuild_filter",
    "fenced": "the guard is disabled, often after an unconfirmed add; run rebuild_filter",
    "lease": "the state rows cannot be read",
    "identity": "the filter is in another store, or the store was restarted since the build; run rebuild_filter",
    "unreachable": "the store does not answer",
    "untrusted": "the filter is damaged, or was built for another definition or SECRET_KEY; run rebuild_filter",
    "ambiguous": "several schemas or databases have the table, and the filter does not have the rows of this one",
    "shadow": "the filter does not contain it, but the guard is in shadow mode, so the request passes",
    "false absence": "the row exists, but the filter does not contain it; run rebuild_filter",
    "error": "an error inside bloomguard",
    "disabled": "BLOOMGUARD['ENABLED'] is not True, so no guard answers",
}


@dataclass(frozen=True, kw_only=True)
class GuardAnswer:
    """How one guard answers a path.

    ``answered`` is the place, as in ``guard_routes``; ``outcome`` describes what happens to the request. ``key`` is in
    hexadecimal, and empty if ``value`` has no key. ``generation`` and ``state`` are empty if there is none; ``fault``
    is what is wrong with them. ``lease_seconds`` is the time for which the cached state row stays valid. ``first_us``
    and ``again_us`` are the durations of the first decision and of a second one with warm caches, in microseconds.
    """

    guard: str
    model: str
    lookup: str
    answered: str
    outcome: str
    value: str
    key: str
    verdict: str
    reason: str
    meaning: str
    store: str
    backend: str
    identity: str
    generation: dict[str, Any]
    state: dict[str, Any]
    fault: str
    lease_seconds: float
    first_us: float
    again_us: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a request is answered: the pattern to which Django resolves the path, and the answer of each of its guards.

    ``pattern`` is empty if no pattern matches. ``unguarded`` is the reason if ``guards`` is empty. ``resolve_us`` is
    the time that Django takes to resolve the path, in microseconds.
    """

    path: str
    method: str
    pattern: str
    name: str
    resolve_us: float
    unguarded: str
    guards: tuple[GuardAnswer, ...]


def explain(path: str, method: str = "GET", urlconf: Any = None) -> Explanation:
    """Explain how a request for ``path`` is answered under ``urlconf`` (default ``ROOT_URLCONF``). Changes nothing.

    Raises :class:`ImportError` if the URLconf does not exist, and :class:`ConfigurationError` if ``@guarded`` names a
    guard that does not exist.
    """
    table = table_for(urlconf)
    with translation.override(translation.get_language_from_path(path) or translation.get_language()):
        began = time.perf_counter()
        try:
            match = resolve(path, table.urlconf)
        except Resolver404:
            return _unguarded(path, method, "no URL pattern matches this path")
        resolve_us = _us_since(began)
        found = (each for each in table.patterns if each.is_of(match) and each.match(path) is not None)
        pattern = next(found, None)
        if pattern is None:
            return _unguarded(path, method, "its URL pattern finds paths and views in its own way")
        rows = rows_of_pattern(table, pattern) if takes_id(pattern) else []
    answers = tuple(_answer(row, table, pattern, match, method) for row in rows if row.guard)
    why = "" if answers else rows[0].reason if rows else "the pattern captures nothing from the path"
    return Explanation(
        path=path,
        method=method,
        pattern=pattern.text,
        name=match.view_name if pattern.is_named else "",
        resolve_us=resolve_us,
        unguarded=why,
        guards=answers,
    )


def _unguarded(path: str, method: str, why: str) -> Explanation:
    return Explanation(path=path, method=method, pattern="", name="", resolve_us=0.0, unguarded=why, guards=())


def _answer(row: Row, table: RouteTable, pattern: Pattern, match: ResolverMatch, method: str) -> GuardAnswer:
    guard = registry[row.guard]
    value = _value(row, table, pattern, match)
    began = time.perf_counter()
    decision, error = _decide(guard, value)
    first_us, began = _us_since(began), time.perf_counter()
    decision, error = _decide(guard, value)
    again_us = _us_since(began)
    lease_seconds = _lease_seconds(table_of(guard))
    generation, state, identity, fault = _look_at(guard)
    return GuardAnswer(
        guard=guard.name,
        model=guard.model._meta.label,
        lookup=guard.lookup if isinstance(guard.lookup, str) else ", ".join(guard.lookup),
        answered=row.answered,
        outcome=_outcome(row, table, pattern, match, method, value, decision.verdict),
        value="" if value is NO_ID else repr(value),
        key=_key(guard, value),
        verdict=decision.verdict.value,
        reason=decision.reason,
        meaning=MEANING[decision.reason],
        store=guard.store,
        backend=_backend(guard),
        identity=identity,
        generation=generation,
        state=state,
        fault=error or fault,
        lease_seconds=lease_seconds,
        first_us=first_us,
        again_us=again_us,
    )


def _decide(guard: Guard, value: Any) -> tuple[Decision, str]:
    """Return the decision of :meth:`GuardRuntime.decide` and its error, without metrics and without a spot check."""
    if not conf.settings.is_enabled:
        return DISABLED, ""
    fault = ""
    try:
        decision = guard._runtime.ask(guard._meta.keys.key(value))
    except Exception as error:
        decision = decision_for(error)
        if isinstance(error, (NoScope, Uncertain)):
            fault = str(error)
        elif decision is ERROR:
            fault = f"{type(error).__name__}: {error}"
    is_shadow = guard._runtime.is_shadow and decision.verdict is Verdict.ABSENT
    return SHADOW if is_shadow else decision, fault


def _value(row: Row, table: RouteTable, pattern: Pattern, match: ResolverMatch) -> Any:
    """Return the ID in the path for the guard of ``row``, or ``NO_ID`` if the path leaves it out."""
    for route in table.guarded:
        if route.pattern is pattern and route.guard.name == row.guard:
            return route.value(match.kwargs)
    guard, callback = registry[row.guard], pattern.callback
    try:
        if getattr(callback, "guarded_by", "") == row.guard:
            names = kwargs_of_view(guard, callback, pattern.captured)
        else:
            names = kwargs_for(guard, pattern.view_name, pattern.captured)
        return unwrapped(tuple(match.kwargs[name] for name in names))
    except (ConfigurationError, KeyError):
        return NO_ID


def _outcome(
    row: Row, table: RouteTable, pattern: Pattern, match: ResolverMatch, method: str, value: Any, verdict: Verdict
) -> str:
    guard = registry[row.guard]
    routes = [route for route in table.guarded if route.pattern is pattern and route.guard is guard]
    methods = routes[0].methods if routes else frozenset(guard.methods)
    why = f" ({row.reason})" if row.reason else ""
    if row.answered == NOWHERE:
        return f"passes{why}"
    if method not in methods:
        return f"passes: the guard answers only {', '.join(sorted(methods)) or 'no method at all'}"
    if verdict is not Verdict.ABSENT:
        return "passes"
    if routes[0].may_raise(value, match.kwargs) if routes else may_raise(guard, value, match.kwargs.values()):
        return "passes: the view's query may raise an error, or look up another value"
    place = "at the route, or at the door if the site has one" if row.answered == DOOR else f"at the {row.answered}"
    unless = "" if type(guard).applies is Guard.applies else ", if applies(request) returns True"
    return f"404 {place}{why}{unless}"


def _key(guard: Guard, value: Any) -> str:
    try:
        return guard._meta.keys.key(value).hex()
    except Exception:  # the decision already has the reason
        return ""


def _look_at(guard: Guard) -> tuple[dict[str, Any], dict[str, Any], str, str]:
    """Return the active generation, the state row, the current identity of the store, and what is wrong with them."""
    generation: dict[str, Any] = {}
    state: dict[str, Any] = {}
    identity = fault = ""
    try:
        active = guard._runtime.active_filter
        identity = active.store.identity
        row = active.table.row(guard.name)
        if row is None:
            return {}, {}, identity, "there is no state row"
        state = model_to_dict(row)
        found = open_active(guard, active.table.current(guard.name))
        layout = found.layout
        generation = {
            "name": found.name,
            "kind": layout.kind,
            "capacity": layout.capacity,
            "error_rate": layout.error_rate,
            "shards": len(layout.headers),
            "bytes": layout.total_bytes,
        }
    except (BloomGuardError, FilterError, DatabaseError) as error:
        fault = str(error)
    return generation, state, identity, fault


def _backend(guard: Guard) -> str:
    try:
        store = type(guard._runtime.active_filter.store)
    except BloomGuardError:  # the decision has the reason
        return ""
    return f"{store.__module__}.{store.__name__}"


def _lease_seconds(table: StateTable) -> float:
    return round(max(LEASE_SECONDS - (table.clock() - table.copy.read_at), 0.0), 3)


def _us_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1e6, 1)
