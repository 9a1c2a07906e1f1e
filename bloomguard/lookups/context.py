"""The context of guarded lookups: a request that passed the middleware, or a block of :func:`guarded_lookups`.

A context variable holds it. Coroutines, and threads that copy the variables, as those of ``sync_to_async`` and
``asyncio.to_thread`` do, inherit the one of their request. Other threads and processes that a view starts, tasks of a
queue and management commands have none, and their queries go to the database.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import django
from django.utils.translation import gettext

from ..conf import settings
from ..guards import Guard
from ..guards.counters import AVOIDED, WOULD_BLOCK, WOULD_HARM
from ..guards.keys import OutOfRange
from ..guards.places import in_a_thread
from ..guards.runtime import MOST_KNOWN, Known
from ..process import log_once
from ..state.verdicts import MAYBE, Decision, Verdict

if TYPE_CHECKING:
    from django.http import HttpRequest


#: The message of Django's ``get_object_or_404``, and what the running version makes of it.
NO_ROW = "No %s matches the given query."
in_language = gettext if django.VERSION >= (6, 1) else str

#: The key under which the door passes its decisions on to the middleware, with the guards that answered MAYBE.
KNOWN = "bloomguard.known"


class LookupContext:
    """One request, or one block without a request, with the decisions of its guards.

    ``known``: (guard, key) -> decision. A value without a key has ``None`` in place of it.
    """

    #: A task that the request has started may outlive it.
    is_over = False
    #: The guards in shadow mode that have counted this request.
    shadowed: Sequence[Guard] = ()
    #: The guards whose own ``applies`` was called.
    applied: Sequence[Guard] = ()

    def __init__(self, request: HttpRequest | None = None, known: Known | None = None) -> None:
        self.request = request
        self.known: Known = {} if known is None else known
        #: The guard of each query that was answered and not sent.
        self.avoided: list[Guard] = []

    def applies(self, guard: Guard) -> bool:
        """Return :meth:`Guard.applies` for the request; ``False`` if it raises, which is logged once.

        Guards answer none of its own queries: one of the guard's model would call it again.
        """
        # Hot path: without the call of `has_own_applies`.
        if self.request is None or getattr(guard.applies, "__func__", None) is Guard.applies:
            return True
        if guard not in self.applied:
            self.applied = (*self.applied, guard)
        before = contexts.get()
        contexts.set(None)
        try:
            applies = guard.applies(self.request)
            if isawaitable(applies):
                getattr(applies, "close", lambda: None)()
                raise TypeError("applies() returned an awaitable; define it without async")
            return applies
        except Exception as error:
            log_once.error(error, "bloomguard: guard %s passes requests, because its applies() failed", guard.name)
            return False
        finally:
            contexts.set(before)

    # A guard checks and counts each key once per context: the route and the view's query share the decision. After
    # ABSENT it checks again, without a count: the same request may have created the row since.

    def ask(self, guard: Guard, value: Any) -> Decision:
        """Return the decision on ``value``: the known one, or a new one, which is counted."""
        decision = guard._runtime.short(self.known, value)
        if decision is not None:
            return decision
        key, decision = self._recall(guard, value)
        if decision is not None and decision.verdict is Verdict.ABSENT:
            decision = _ask_again(guard, key)
        return self._keep(guard, key, decision or guard._runtime.decide_in_full(value, key))

    async def aask(self, guard: Guard, value: Any) -> Decision:
        """Async :meth:`ask`; never blocks the event loop."""
        decision = guard._runtime.short(self.known, value, absent=False)
        if decision is not None:
            return decision
        key, decision = self._recall(guard, value)
        if decision is not None and decision.verdict is Verdict.ABSENT:
            decision = await in_a_thread(_ask_again)(guard, key)
        return self._keep(guard, key, decision or await guard._runtime.adecide(value, key))

    def _recall(self, guard: Guard, value: Any) -> tuple[bytes | None, Decision | None]:
        """Return the key of ``value`` and the known decision on it; ``None`` for what there is not."""
        try:
            key = guard._meta.keys.key(value)
        except Exception:  # the decision has the reason
            return None, None
        return key, self.known.get((guard, key))

    def _keep(self, guard: Guard, key: bytes | None, decision: Decision) -> Decision:
        if len(self.known) < MOST_KNOWN:
            self.known[guard, key] = decision
        return decision

    def forget(self, guard: Guard, value: Any) -> None:
        """Ask the guard again for ``value``. That it was asked stays known."""
        with suppress(Exception):
            self.known[guard, None] = self.known.pop((guard, guard._meta.keys.key(value)))

    def note_asked(self, guard: Guard) -> None:
        """Record that a query has the key of ``guard``, whether or not the guard may answer it.

        A 404 has the same headers after every such query. Else they would reveal which rows exist but are hidden.
        """
        self.known.setdefault((guard, None), MAYBE)

    def note_avoided(self, guard: Guard) -> None:
        """Record a query that ``guard`` answered, so that it was not sent."""
        if self.request is None:
            guard._runtime.counters[AVOIDED]()
        else:
            self.avoided.append(guard)


def _ask_again(guard: Guard, key: Any) -> Decision | None:
    """Return an ABSENT on ``key``, without counting it; ``None`` if the guard has to decide anew, or after an error."""
    with suppress(Exception):  # :meth:`GuardRuntime.decide` maps it to a decision
        decision = guard._runtime.ask(key)
        if decision.verdict is Verdict.ABSENT and not guard._runtime.is_shadow:
            return decision
    return None


#: The context of the running code, ``None`` outside of requests and blocks. It may be over: a task can outlive its
#: request.
contexts: ContextVar[LookupContext | None] = ContextVar("bloomguard_lookups", default=None)


#: The context of the door's probes, in which no guard answers: the door needs the site's own response.
PROBE = LookupContext()
PROBE.is_over = True

if hasattr(os, "register_at_fork"):
    # A forked child may outlive the request, and nobody there would end the context.
    os.register_at_fork(after_in_child=partial(contexts.set, None))


@contextmanager
def guarded_lookups() -> Iterator[None]:
    """Let guards answer ORM queries for one row in this block, as in a GET request.

    For code outside of requests, such as a task that follows links::

        with guarded_lookups():
            city = City.objects.filter(pk=pk).first()
    """
    before = contexts.get()
    if before is PROBE or not settings.is_enabled:
        yield
        return
    # In a request, the headers of its 404 depend on what the block has asked, too.
    context = LookupContext(known=None if before is None or before.is_over else before.known)
    contexts.set(context)
    try:
        yield
    finally:
        contexts.set(before)
        context.is_over = True


# -- shadow mode: compare what a guard would have answered with what the site answers


def compare_rows(context: LookupContext, guard: Guard, value: Any, result: Any) -> None:
    """Count a query that ``guard`` would have answered, and that was sent. May read the state rows. Never raises.

    A row, or a list of chunks, shows whether there is one. An iterator does not: Django returns one if it sent nothing.
    """
    if guard in context.shadowed or not (result is None or isinstance(result, (list, tuple))):
        return  # a request counts once, even with several queries
    context.shadowed = (*context.shadowed, guard)
    harm = "a query found a row that the filter does not have. Run verify_filter" if result else ""
    _count_would_be(guard, value, harm)


def compare_status(guard: Guard, value: Any, status: int) -> None:
    """Count a request that ``guard`` would have answered 404 at its route; the site answered ``status``.

    Any status but 404 and 410 differs, a redirect too. May read the state rows. Never raises.
    """
    harm = f"it would have answered 404 in place of {status}. Does the view answer without a row?"
    _count_would_be(guard, value, "" if status in (404, 410) else harm)


def _count_would_be(guard: Guard, value: Any, harm: str) -> None:
    """Count what ``guard`` would have answered; also as a ``harm``, unless the filter has got the row meanwhile."""
    try:
        guard._runtime.counters[WOULD_BLOCK]()
        if harm and _filter_denies(guard, value):
            guard._runtime.counters[WOULD_HARM]()
            log_once.log(logging.ERROR, "bloomguard: guard %s in shadow mode: %s", guard.name, harm)
    except Exception as error:
        log_once.error(error, "bloomguard could not compare in shadow mode, because of an internal error")


def _filter_denies(guard: Guard, value: Any) -> bool:
    try:
        return guard._runtime.ask(guard._meta.keys.key(value)).verdict is Verdict.ABSENT
    except OutOfRange:
        return True
