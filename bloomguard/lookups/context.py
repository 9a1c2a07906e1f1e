"""The context of guarded lookups: a request that passed the middleware, or a block of :func:`guarded_lookups`.

A context variable holds it. Coroutines, and threads that copy the variables, as those of ``sync_to_async`` and
``asyncio.to_thread`` do, inherit the one of their request. Other threads and processes that a view starts, tasks of a
queue and management commands have none, and their queries go to the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from inspect import isawaitable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async

from ..conf import settings
from ..guards.counters import AVOIDED, drawn, listeners
from ..process import LogOnce, after_fork
from ..verdicts import MAYBE, Verdict

if TYPE_CHECKING:
    from django.http import HttpRequest

    from ..guards import Guard

_log = LogOnce()

#: Limit of known answers: a request checks few keys, but a block may run for hours.
_MOST_KNOWN = 1_000


class Answer(NamedTuple):
    """What a guard says of the row with ``value``, in one context: its verdict and the reason."""

    guard: Guard
    value: Any
    verdict: Verdict
    reason: str


class LookupContext:
    """One request, or one block without a request, with the answers of its guards.

    ``answers``: the last answer of each guard, by name.
    """

    __slots__ = ("_known", "answers", "avoided", "is_over", "request", "shadowed")

    def __init__(self, request: HttpRequest | None = None) -> None:
        self.request = request
        self.is_over = False
        self.answers: dict[str, Answer] = {}
        #: The guard of each query that was answered and not sent.
        self.avoided: list[Guard] = []
        #: The names of guards in shadow mode that have counted this request.
        self.shadowed: set[str] = set()
        self._known: dict[Any, Answer] = {}

    def applies(self, guard: Guard) -> bool:
        """Return :meth:`Guard.applies` for the request; ``False`` if it raises, which is logged once.

        Guards answer none of its own queries: one of the guard's model would call it again.
        """
        if self.request is None:
            return True
        before = contexts.get()
        contexts.set(None)
        try:
            applies = guard.applies(self.request)
            if isawaitable(applies):
                getattr(applies, "close", lambda: None)()
                raise TypeError("applies() returned an awaitable; define it without async")
            return applies
        except Exception as error:
            _log.error(error, "bloomguard: guard %s passes requests, because its applies() failed", guard.name)
            return False
        finally:
            contexts.set(before)

    # A guard checks each key once per context: the route and the view's query share the answer. ABSENT is not shared:
    # the same request may have created the row since.

    def ask(self, guard: Guard, value: Any) -> Answer:
        """Return the answer on ``value``: the one known, or that of :meth:`GuardRuntime.decide`, which counts it."""
        try:
            key = guard._runtime.keys.key(value)
        except Exception:  # the decision has the reason
            key = None
        answer = self._known.get((guard, key))
        if answer is None:
            decision = guard._runtime.decide(value, key)
            answer = tuple.__new__(Answer, (guard, value, *decision))  # a call fewer than `Answer()`
        elif answer.verdict is Verdict.ABSENT:
            answer = self._ask_again(answer, key)
        self.answers[guard.name] = answer
        if answer.verdict is not Verdict.ABSENT and key is not None and len(self._known) < _MOST_KNOWN:
            self._known[guard, key] = answer
        return answer

    async def aask(self, guard: Guard, value: Any) -> Answer:
        """Async :meth:`ask`; never blocks the event loop."""
        try:
            key = guard._runtime.keys.key(value)
        except Exception:
            key = None
        answer = self._known.get((guard, key))
        if answer is None:
            answer = Answer(guard, value, *await guard._runtime.adecide(value, key))
        elif answer.verdict is Verdict.ABSENT:
            answer = await sync_to_async(self._ask_again, thread_sensitive=False)(answer, key)
        self.answers[guard.name] = answer
        if answer.verdict is not Verdict.ABSENT and key is not None and len(self._known) < _MOST_KNOWN:
            self._known[guard, key] = answer
        return answer

    def note_counted(self, answer: Answer) -> None:
        """Record that an ABSENT was counted although the view runs, so that the view's query is not counted again."""
        with suppress(Exception):  # no key
            self._known[answer.guard, answer.guard._runtime.keys.key(answer.value)] = answer

    def _ask_again(self, answer: Answer, key: Any) -> Answer:
        """Ask again after :meth:`note_counted`, without counting another ABSENT."""
        guard = answer.guard
        with suppress(Exception):  # :meth:`GuardRuntime.decide` then maps it to a decision
            if guard._runtime.ask(key).verdict is Verdict.ABSENT:
                return answer
        return Answer(guard, answer.value, *guard._runtime.decide(answer.value, key))

    def forget(self, answer: Answer) -> None:
        """Drop ``answer``: the guard is asked again."""
        with suppress(Exception):
            self._known.pop((answer.guard, answer.guard._runtime.keys.key(answer.value)), None)

    def note_avoided(self, guard: Guard) -> None:
        """Record a query that ``guard`` answered, so that it was not sent."""
        if self.request is None:
            guard._runtime.counters[AVOIDED]()
        else:
            self.avoided.append(guard)

    def close(self, status: int = 0) -> Guard | None:
        """End the context; return the guard that caused a response with ``status`` 404, if any.

        Its last answered query counts as part of the blocked request, each other one as an avoided query.
        """
        self.is_over = True
        blocked = self.avoided.pop() if status == 404 and self.avoided else None
        for guard in self.avoided:
            guard._runtime.counters[AVOIDED]()
        self.avoided = []
        return blocked


Passes = Callable[[LookupContext, Any], "Answer | None"]


def passing(guard: Guard) -> Passes:
    """Return ``passes(context, value)``, :meth:`LookupContext.ask` for a row that exists: its MAYBE, else ``None``.

    Hot path: nearly every request is for such a row. The rest of the request has filled the processor's caches, so
    each call and each object on the way costs a microsecond: all of them are bound here. It checks the generation that
    was checked last, in this process or on its disk: MAYBE needs no more (:mod:`bloomguard.state.active_filter`).
    For a guard with a ``scope`` it returns ``None``: its key depends on the connection.
    """
    if guard.scope is not None:
        return lambda context, value: None
    active, counters, key_of = guard._runtime.active_filter, guard._runtime.counters, guard._runtime.keys.key
    cache, name, reason = active.negative_cache, guard.name, MAYBE.reason

    def passes(context: LookupContext, value: Any) -> Answer | None:
        asked = active.last_check
        if asked is None or active.is_remote is not False or listeners or not settings.is_enabled:
            return None
        known, began = context._known, perf_counter_ns() if drawn() else 0
        try:
            key = key_of(value)
            answer = known.get((guard, key))
            if answer is not None:
                return answer if answer.verdict is Verdict.MAYBE else None
            if not asked[1](key) or hash(key) in cache.marks:
                return None
        except Exception:  # :meth:`LookupContext.ask` meets the same error, and handles it
            return None
        if began:
            counters.time(began)
        counters[reason]()
        answer = tuple.__new__(Answer, (guard, value, *MAYBE))  # a call fewer than `Answer()`
        context.answers[name] = answer
        if len(known) < _MOST_KNOWN:
            known[guard, key] = answer
        return answer

    return passes


#: The context of the running code, ``None`` outside of requests and blocks. It may be over: a task can outlive its
#: request.
contexts: ContextVar[LookupContext | None] = ContextVar("bloomguard_lookups", default=None)


def current() -> LookupContext | None:
    """Return the open context of the running code, if any; a task that outlives its request has none."""
    context = contexts.get()
    return None if context is None or context.is_over else context


class _Forks:
    """Drops the context in a forked child, which may outlive the request: nobody there would end it."""

    def __init__(self) -> None:
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        contexts.set(None)


_forks = _Forks()


@contextmanager
def guarded_lookups() -> Iterator[None]:
    """Let guards answer ORM queries for one row in this block, as in a GET request.

    For code outside of requests, such as a task that follows links::

        with guarded_lookups():
            city = City.objects.filter(pk=pk).first()
    """
    context = LookupContext()
    before = contexts.get()
    contexts.set(context)
    try:
        yield
    finally:
        contexts.set(before)
        context.close()
