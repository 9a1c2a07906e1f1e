"""Where look-ups are guarded: inside a request that the middleware has seen, or a block of :func:`guarded_lookups`.

A context variable says so. A coroutine and a thread of ``sync_to_async`` see the one of their request; a thread that
a view starts, a task of a queue and a management command see none, and their queries are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ..counting.counts import SPARED
from ..log_once import LogOnce
from ..verdicts import ABSENT, MAYBE, Decision, Verdict

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..guards import Guard

_log = LogOnce()

#: A request asks for few keys; a block may run for hours.
_MOST_KNOWN = 1_000


class Scope:
    """One request, or one block without a request: what its guards have said so far.

    ``asked`` says that a guard was asked, whatever it answered. ``decisions`` has the last decision of each guard by
    name.
    """

    __slots__ = ("_known", "asked", "decisions", "is_over", "request", "shadowed", "spared")

    def __init__(self, request: HttpRequest | None = None) -> None:
        self.request = request
        self.is_over = False
        self.asked = False
        self.decisions: dict[str, Decision] = {}
        #: The guards that have answered a query, once for each query.
        self.spared: list[Guard] = []
        #: The guards in shadow mode that have counted this request.
        self.shadowed: set[str] = set()
        self._known: dict[tuple[str, bytes] | None, Decision] = {}

    def applies(self, guard: Guard) -> bool:
        """What :meth:`Guard.applies` says of the request; ``False`` if it raises, which is logged once."""
        if self.request is None:
            return True
        try:
            applies = guard.applies(self.request)
            if isawaitable(applies):
                getattr(applies, "close", lambda: None)()
                raise TypeError("applies() must not be async")
            return applies
        except Exception as error:
            _log.error(error, "bloomguard lets requests pass: applies() of the guard %s failed", guard.name)
            return False

    # A guard is asked for each key once: the route and the view's own query share the answer. Not so an absence: the
    # row may have been made since, by this very request.

    def decide(self, guard: Guard, value: Any) -> Decision:
        """:meth:`Guard.decide`, which counts."""
        self.asked = True
        try:
            key = guard.keys.key(value)
        except Exception:  # no key: the decision says why
            return self._keep(guard, None, guard.decide(value))
        question = guard.name, key
        decision = self._known.get(question)
        if decision is ABSENT:
            return self._still(guard, value, question)
        if decision is None:
            decision = guard.decide(value, key)
            if decision is MAYBE and len(self._known) < _MOST_KNOWN:  # the normal request: no more code than it takes
                self._known[question] = self.decisions[guard.name] = decision
            else:
                self._keep(guard, question, decision)
        return decision

    async def adecide(self, guard: Guard, value: Any) -> Decision:
        """:meth:`decide` on an event loop."""
        question = self._question(guard, value)
        decision = self._known.get(question)
        if decision is ABSENT and question is not None:
            return await sync_to_async(self._still, thread_sensitive=False)(guard, value, question)
        return decision or self._keep(guard, question, await guard.adecide(value))

    def _question(self, guard: Guard, value: Any) -> tuple[str, bytes] | None:
        self.asked = True
        try:
            return guard.name, guard.keys.key(value)
        except Exception:  # no key: the decision says why
            return None

    def _keep(self, guard: Guard, question: tuple[str, bytes] | None, decision: Decision) -> Decision:
        self.decisions[guard.name] = decision
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        if question is not None and decision.verdict is not Verdict.ABSENT:
            self._known[question] = decision
        return decision

    def note_counted(self, guard: Guard, value: Any) -> None:
        """``guard`` has counted an absence that could not be answered: the view runs, and asks for the same key."""
        question = self._question(guard, value)
        if question is not None:
            self._known[question] = ABSENT

    def _still(self, guard: Guard, value: Any, question: tuple[str, bytes]) -> Decision:
        """What ``guard`` says after :meth:`note_counted`: an absence is not counted again."""
        with suppress(Exception):  # which :meth:`Guard.decide` gives a reason
            if guard.live.ask(question[1]).verdict is Verdict.ABSENT:
                return ABSENT
        return self._keep(guard, question, guard.decide(value, question[1]))

    def forget(self, guard: Guard, value: Any) -> None:
        """Ask ``guard`` anew for ``value``."""
        self._known.pop(self._question(guard, value), None)

    def spare(self, guard: Guard) -> None:
        """A query was answered by ``guard`` and not sent."""
        if self.request is None:
            guard.tallies[SPARED]()
        else:
            self.spared.append(guard)

    def close(self, status: int = 0) -> Guard | None:
        """End the scope; return the guard that a response with ``status`` 404 is owed to, if any.

        That guard's last query is part of the blocked request; every other one counts as a query avoided.
        """
        self.is_over = True
        blocked = self.spared.pop() if status == 404 and self.spared else None
        for guard in self.spared:
            guard.tallies[SPARED]()
        self.spared = []
        return blocked


#: The scope that this code runs in; a task may outlive its request's.
scopes: ContextVar[Scope | None] = ContextVar("bloomguard_lookups", default=None)


def current() -> Scope | None:
    """The scope that this code runs in, if any. A task that outlives its request is in none."""
    scope = scopes.get()
    return None if scope is None or scope.is_over else scope


@contextmanager
def guarded_lookups() -> Iterator[None]:
    """In this block ORM queries for one row ask the guards first, as they do in a GET request.

    For code that runs outside of requests, such as a task that follows links::

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
    """``method``, with its queries left alone: Django has the row already, or a row that points to it."""

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
