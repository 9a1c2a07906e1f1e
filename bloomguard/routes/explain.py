"""Show which guard answers for each URL pattern, where, and why not earlier; and how guards answer for one path.

For the commands ``guard_routes`` and ``explain_guard``. For one path, each guard decides twice, so that the timings
show a process that has just started and one with warm caches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError
from django.forms.models import model_to_dict
from django.urls import Resolver404, ResolverMatch, is_valid_path, resolve
from django.utils import translation

from .. import conf
from ..exceptions import BloomGuardError, ConfigurationError
from ..filters import FilterError
from ..guards import AUTO, Guard, registry
from ..guards.fields import may_raise
from ..guards.guard import has_own_applies
from ..guards.keys import NoScope, Uncertain, decision_for, unwrapped
from ..lookups.query import concrete
from ..lookups.select import answers_queries
from ..rebuild.plan import open_active
from ..state.table import LEASE_SECONDS
from ..state.verdicts import DISABLED, ERROR, SHADOW, UNKEYABLE, Decision, Verdict
from ..writes.fencing import table_of
from .discovery import is_of_key, looked_up_by, models_named_by, reason_against, why_not_found
from .openness import ELSEWHERE, LAST, MISSING, guarded_views, guards_place, layers
from .patterns import Pattern
from .table import NO_ID, GuardedRoute, RouteTable, UnclearKwargs, kwargs_for, kwargs_of_view, table_for

#: The place where a guard answers; the door answers only if the project calls ``shield()``.
DOOR, ROUTE, LOOKUP, NOWHERE = "door", "route", "lookup", ""


@dataclass(frozen=True)
class Row:
    """One pattern and one guard, or an empty ``guard``. ``reason`` says why the guard does not answer earlier."""

    pattern: str
    name: str
    guard: str
    answered: str
    reason: str


def rows_of_pattern(table: RouteTable, pattern: Pattern) -> list[Row]:
    """Return one row for each guard of ``pattern``; if it has no guard, one row with the reason."""
    found = {route.guard.name: _of_route(route) for route in table.guarded if route.pattern is pattern}
    in_views = {view.guarded_by: view for view in guarded_views(pattern.callback)}
    for name, view in in_views.items():
        if (guard := registry.get(name)) is not None and found.get(name, (LOOKUP,))[0] not in (DOOR, ROUTE):
            found[name] = _of_decorator(pattern, guard, view)
    for guard, reason in _of_lookups(pattern, is_known=bool(found)):
        found.setdefault(guard.name, (LOOKUP, reason))
    if not found:
        unknown = " or ".join(map(repr, in_views))
        found[""] = NOWHERE, f"no guard has the name {unknown} of its @guarded" if unknown else reason_against(pattern)
    return [Row(pattern.text, pattern.view_name, name, *row) for name, row in found.items()]


def _of_route(route: GuardedRoute) -> tuple[str, str]:
    if route.closed:
        return _closed(route.guard, route.closed)
    return ROUTE if route.not_at_door else DOOR, route.not_at_door


def _of_decorator(pattern: Pattern, guard: Guard, view: Any) -> tuple[str, str]:
    try:
        kwargs_of_view(guard, view, pattern.captured, view.guarded_arg)
    except ConfigurationError as problem:
        return _closed(guard, problem)
    return ROUTE, "by @guarded, at its place among the view's decorators"


def _closed(guard: Guard, why: object) -> tuple[str, str]:
    return LOOKUP if answers_queries(guard) else NOWHERE, f"not before the view: {why}"


def _of_lookups(pattern: Pattern, *, is_known: bool) -> Iterator[tuple[Guard, str]]:
    """Yield the guards that check the view's own query, with a reason.

    The view's class decides, or else the names of the captured kwargs. Names alone are weak evidence: they are ignored
    if another guard of the pattern ``is_known``, or if the view's code names the models of others of these guards.
    """
    shown, admin = pattern.shown, getattr(pattern.callback, "model_admin", None)
    by_kwargs: list[tuple[Guard, str]] = []
    for guard in registry:
        if not answers_queries(guard):
            continue
        if admin is not None:
            if "object_id" in pattern.captured and is_of_key(guard, admin.model, admin.model._meta.pk):
                yield guard, "the admin's own query"
        elif shown is None and not is_known:
            why = ""
            try:
                kwargs_for(guard, pattern.view_name, (*pattern.captured, *pattern.fixed))
            except UnclearKwargs as problem:
                if guard.routes != AUTO and pattern.view_name in guard.routes:
                    why = f"; not before the view: {problem}"
            except ConfigurationError:
                continue
            fields = " and ".join(field.name for field in guard._meta.fields)
            by_kwargs.append((guard, f"if its view looks up one {guard.model._meta.label} by {fields}{why}"))
        elif (
            shown is not None
            and issubclass(shown.model, concrete(guard.model))
            and len(guard._meta.fields) == 1
            and looked_up_by(guard, shown)
        ):
            why = why_not_found(guard, pattern) if guard.routes == AUTO else ""
            yield guard, f"its view's own query{why and f'; not before the view: {why}'}"
    *_, view = layers(pattern.callback)
    models = models_named_by(view) if len(by_kwargs) > 1 else ()
    named = [each for each in by_kwargs if any(issubclass(model, concrete(each[0].model)) for model in models)]
    yield from named or by_kwargs


# -- one path


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
    place: str
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
    pattern: str = ""
    name: str = ""
    resolve_us: float = 0.0
    unguarded: str = ""
    guards: tuple[GuardAnswer, ...] = ()


def explain(path: str, method: str = "GET", urlconf: Any = None) -> Explanation:
    """Explain how a request for ``path`` is answered under ``urlconf`` (default ``ROOT_URLCONF``). Changes nothing.

    Raises :class:`ImportError` if the URLconf does not exist.
    """
    table = table_for(urlconf)
    with translation.override(translation.get_language_from_path(path) or translation.get_language()):
        began = time.perf_counter()
        try:
            match = resolve(path, table.urlconf)
        except Resolver404:
            why = "no URL pattern matches this path"
            if is_valid_path(f"{path}/", table.urlconf):
                why += f"; one matches {path}/, with a slash at the end: explain that"
            return Explanation(path=path, method=method, unguarded=why)
        resolve_us = _us_since(began)
        same_view = (each for each in table.patterns if each.callback is match.func and each.route() == match.route)
        pattern = next((each for each in same_view if each.match(path) is not None), None)
        if pattern is None:
            why = "its URL pattern finds paths and views in its own way"
            return Explanation(path=path, method=method, unguarded=why)
        rows = rows_of_pattern(table, pattern) if pattern.takes_id else []
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


def _answer(row: Row, table: RouteTable, pattern: Pattern, match: ResolverMatch, method: str) -> GuardAnswer:
    guard = registry[row.guard]
    route = next((each for each in table.guarded if each.pattern is pattern and each.guard is guard), None)
    value = route.value(match.kwargs) if route is not None else _value(guard, pattern, match)
    rows, began = table_of(guard), time.perf_counter()
    _decide(guard, value)
    first_us = _us_since(began)
    rows.renew()  # without a filter here the decision reads no row, so it knows of none elsewhere
    began = time.perf_counter()
    decision, error = _decide(guard, value)
    again_us = _us_since(began)
    lease_seconds = max(LEASE_SECONDS - (rows.clock() - rows.copy.read_at), 0.0)
    seen = _look_at(guard)
    return GuardAnswer(
        guard=guard.name,
        model=guard.model._meta.label,
        lookup=guard.lookup if isinstance(guard.lookup, str) else ", ".join(guard.lookup),
        answered=row.answered,
        outcome=_outcome(row, guard, route, match, method, value, decision.verdict),
        value="" if value is NO_ID else repr(value),
        key=_key(guard, value),
        verdict=decision.verdict.value,
        reason=decision.reason,
        meaning=decision.meaning,
        store=guard.store,
        lease_seconds=round(lease_seconds, 3),
        first_us=first_us,
        again_us=again_us,
        **(seen | {"fault": error or seen["fault"]}),
    )


def _decide(guard: Guard, value: Any) -> tuple[Decision, str]:
    """Return the decision of :meth:`GuardRuntime.decide` and its error, without metrics and without a spot check."""
    if not conf.settings.is_enabled:
        return DISABLED, ""
    if value is NO_ID:
        return UNKEYABLE, ""
    fault = ""
    try:
        decision = guard._runtime.ask(guard._runtime.key(value))
    except Exception as error:
        decision = decision_for(error)
        if isinstance(error, (NoScope, Uncertain)):
            fault = str(error)
        elif decision is ERROR:
            fault = f"{type(error).__name__}: {error}"
    is_shadow = decision.verdict is Verdict.ABSENT and guard._runtime.is_shadow
    return SHADOW if is_shadow else decision, fault


def _value(guard: Guard, pattern: Pattern, match: ResolverMatch) -> Any:
    """Return the ID in the path for a guard without a route, or ``NO_ID`` if the path leaves it out."""
    in_view = next((view for view in guarded_views(pattern.callback) if view.guarded_by == guard.name), None)
    try:
        if in_view is not None:
            names = kwargs_of_view(guard, in_view, pattern.captured, in_view.guarded_arg)
        else:
            names = kwargs_for(guard, pattern.view_name, (*pattern.captured, *pattern.fixed))
        return unwrapped(tuple(match.kwargs[name] for name in names))
    except (ConfigurationError, KeyError):
        return NO_ID


def _outcome(
    row: Row, guard: Guard, route: GuardedRoute | None, match: ResolverMatch, method: str, value: Any, verdict: Verdict
) -> str:
    methods = frozenset(guard.methods) if route is None else route.methods
    why = f" ({row.reason})" if row.reason else ""
    if row.answered == NOWHERE:
        return f"passes{why}"
    if method not in methods:
        return f"passes: the guard answers {('only ' + ', '.join(sorted(methods))) if methods else 'no method'}"
    if verdict is not Verdict.ABSENT:
        return "passes"
    captured = match.kwargs
    if route.may_raise(value, captured) if route is not None else may_raise(guard, value, captured.values()):
        return "passes: the view's query may raise an error, or look up another value"
    places, reason = _places(row, guard, is_in_view=row.answered == ROUTE and route is None)
    why = f" ({reason})" if reason else ""
    if not places:
        return f"passes{why}"
    unless = ", if applies(request) returns True" if has_own_applies(guard) else ""
    return f"404 {', or '.join(places)}{why}{unless}"


def _places(row: Row, guard: Guard, *, is_in_view: bool) -> tuple[list[str], str]:
    """Return where an absent ID is answered, and why not earlier; ``@guarded`` (``is_in_view``) needs no middleware."""
    position = LAST if is_in_view else guards_place()
    places, reason = [f"at the {ROUTE if row.answered == DOOR else row.answered}"], row.reason
    if position == MISSING:
        places, reason = [], "MIDDLEWARE has no BloomGuardMiddleware"
    elif position == ELSEWHERE and row.answered != LOOKUP:
        places = [f"at the {LOOKUP}"] if answers_queries(guard) else []
        reason = "not before the view: other middleware comes after BloomGuardMiddleware"
    return [*places, *["at the door if the site has one"] * (row.answered == DOOR)], reason


def _key(guard: Guard, value: Any) -> str:
    try:
        return "" if value is NO_ID else guard._meta.keys.key(value).hex()
    except Exception:  # the decision already has the reason
        return ""


def _look_at(guard: Guard) -> dict[str, Any]:
    """Return the store, the active generation and the state row, and what is wrong with them (``fault``)."""
    seen: dict[str, Any] = {"backend": "", "place": "", "identity": "", "generation": {}, "state": {}, "fault": ""}
    try:
        active = guard._runtime.active_filter
        store, configured = type(active.store), conf.settings.stores.get(guard.store, {})
        seen["backend"] = configured.get("BACKEND") or f"{store.__module__}.{store.__name__}"
        seen["place"] = active.store.place
        seen["identity"] = active.store.identity
        if missing := active.table.missing():
            return seen | {"fault": missing}
        row = active.table.row(guard.name)
        if row is None:
            return seen | {"fault": "there is no state row"}
        seen["state"] = model_to_dict(row)
        found = open_active(guard, active.table.current(guard.name))
        layout = found.layout
        seen["generation"] = {
            "name": found.name,
            "kind": layout.kind,
            "capacity": layout.capacity,
            "error_rate": layout.error_rate,
            "shards": layout.header.shards,
            "bytes": layout.total_bytes,
        }
    except (BloomGuardError, FilterError, DatabaseError) as error:
        seen["fault"] = str(error)
    return seen


def _us_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1e6, 1)
