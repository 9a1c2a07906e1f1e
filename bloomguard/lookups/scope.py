"""The scope of guarded lookups: a request that passed the middleware, or a block of :func:`guarded_lookups`.

A context variable holds it. Coroutines and threads of ``sync_to_async`` inherit the one of their request. Threads that
a view starts, tasks of a queue and management commands have none, and their queries go to the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ..guards.counters import AVOIDED
from ..log_once import LogOnce
from ..verdicts import ABSENT, MAYBE, Decision, Verdict

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..guards import Guard

_log = LogOnce()

#: Limit of cached decisions: a request checks few keys, but a block may run for hours.
_MOST_KNOWN = 1_000


class Scope:
    """One request, or one block without a request, with the decisions of its guards.

    ``asked``: whether any guard was checked. ``decisions``: the last decision of each guard, by name.
    """

    __slots__ = ("_known", "asked", "avoided", "decisions", "is_over", "request", "shadowed")

    def __init__(self, request: HttpRequest | None = None) -> None:
        self.request = request
        self.is_over = False
        self.asked = False
        self.decisions: dict[str, Decision] = {}
        #: The guard of each query that was answered and not sent.
        self.avoided: list[Guard] = []
        #: The names of guards in shadow mode that have counted this request.
        self.shadowed: set[str] = set()
        self._known: dict[tuple[str, bytes] | None, Decision] = {}

    def applies(self, guard: Guard) -> bool:
        """Return :meth:`Guard.applies` for the request; ``False`` if it raises, which is logged once."""
        if self.request is None:
            return True
        try:
            applies = guard.applies(self.request)
            if isawaitable(applies):
                getattr(applies, "close", lambda: None)()
                raise TypeError("applies() returned an awaitable; define it without async")
            return applies
        except Exception as error:
            _log.error(error, "bloomguard passes requests to %s, because its applies() failed", guard.name)
            return False

    # A guard checks each key once per scope: the route and the view's query share the decision. ABSENT is not cached:
    # the same request may have created the row since.

    def decide(self, guard: Guard, value: Any) -> Decision:
        """Return the decision for ``value``, cached or by :meth:`Guard.decide`, which counts it."""
        self.asked = True
        try:
            key = guard._meta.keys.key(value)
        except Exception:  # no key: the decision has the reason
            return self._keep(guard, None, guard._runtime.decide(value))
        question = guard.name, key
        decision = self._known.get(question)
        if decision is ABSENT:
            return self._recheck(guard, value, question)
        if decision is None:
            decision = guard._runtime.decide(value, key)
            if decision is MAYBE and len(self._known) < _MOST_KNOWN:  # hot path
                self._known[question] = self.decisions[guard.name] = decision
            else:
                self._keep(guard, question, decision)
        return decision

    async def adecide(self, guard: Guard, value: Any) -> Decision:
        """Do :meth:`decide` on an event loop."""
        question = self._question(guard, value)
        decision = self._known.get(question)
        if decision is ABSENT and question is not None:
            return await sync_to_async(self._recheck, thread_sensitive=False)(guard, value, question)
        return decision or self._keep(guard, question, await guard._runtime.adecide(value))

    def _question(self, guard: Guard, value: Any) -> tuple[str, bytes] | None:
        self.asked = True
        try:
            return guard.name, guard._meta.keys.key(value)
        except Exception:  # no key: the decision has the reason
            return None

    def _keep(self, guard: Guard, question: tuple[str, bytes] | None, decision: Decision) -> Decision:
        self.decisions[guard.name] = decision
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        if question is not None and decision.verdict is not Verdict.ABSENT:
            self._known[question] = decision
        return decision

    def note_counted(self, guard: Guard, value: Any) -> None:
        """Record that ``guard`` counted an ABSENT for which the view runs; the view's query is not counted again."""
        question = self._question(guard, value)
        if question is not None:
            self._known[question] = ABSENT

    def _recheck(self, guard: Guard, value: Any, question: tuple[str, bytes]) -> Decision:
        """Check again after :meth:`note_counted`, without counting another ABSENT."""
        with suppress(Exception):  # :meth:`Guard.decide` then maps it to a decision
            if guard._runtime.active_filter.ask(question[1]).verdict is Verdict.ABSENT:
                return ABSENT
        return self._keep(guard, question, guard._runtime.decide(value, question[1]))

    def forget(self, guard: Guard, value: Any) -> None:
        """Drop the cached decision of ``guard`` for ``value``."""
        self._known.pop(self._question(guard, value), None)

    def note_avoided(self, guard: Guard) -> None:
        """Record a query that ``guard`` answered, so that it was not sent."""
        if self.request is None:
            guard._runtime.counters[AVOIDED]()
        else:
            self.avoided.append(guard)

    def close(self, status: int = 0) -> Guard | None:
        """End the scope; return the guard that caused a response with ``status`` 404, if any.

        Its last answered query counts as part of the blocked request, each other one as an avoided query.
        """
        self.is_over = True
        blocked = self.avoided.pop() if status == 404 and self.avoided else None
        for guard in self.avoided:
            guard._runtime.counters[AVOIDED]()
        self.avoided = []
        return blocked


#: The scope of the current context. It may be over: a task can outlive its request.
scopes: ContextVar[Scope | None] = ContextVar("bloomguard_lookups", default=None)


def current() -> Scope | None:
    """Return the open scope of the current context, if any; a task that outlives its request has none."""
    scope = scopes.get()
    return None if scope is None or scope.is_over else scope


@contextmanager
def guarded_lookups() -> Iterator[None]:
    """Let guards answer ORM queries for one row in this block, as in a GET request.

    For code outside of requests, such as a task that follows links::

        with guarded_lookups():
            city = City.objects.filter(pk=pk).first()
    """
    scope = Scope()
    before = scopes.get()
    scopes.set(scope)
    try:
        yield
    finally:
        scopes.set(before)
        scope.close()


def unguarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``method`` so that guards answer none of its queries: Django has the row, or one that points to it."""

    @wraps(method)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        before = scopes.get()
        if before is None:
            return method(*args, **kwargs)
        scopes.set(None)
        try:
            return method(*args, **kwargs)
        finally:
            scopes.set(before)

    return fetch
