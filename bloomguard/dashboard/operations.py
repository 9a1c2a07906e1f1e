"""The operations of the admin page: switch a guard at once, rebuild or verify it by a worker.

``manage.py switch_guards`` switches too. Django's task framework (6.0 and newer) runs the rest, with progress and log
entries, if ``TASKS`` names a backend with workers when the process starts. Django's own backends have none: the
immediate one runs a task within the request, the dummy one never.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..exceptions import ConfigurationError, RebuildError
from ..guards import Guard, registry
from ..models import GuardState, GuardTask
from ..rebuild import Rebuild
from ..rebuild.plan import EXPECTED, is_in_memory
from ..rebuild.verify import MOST_MISSING, Verification
from ..state.row import BY_HAND, FENCED
from ..writes.fencing import table_of

logger = logging.getLogger("bloomguard")

SWITCHES = ENFORCE, FENCE, SHADOW = "enforce", "fence", "shadow"
REBUILD, VERIFY = GuardTask.Work.REBUILD.value, GuardTask.Work.VERIFY.value
#: A task without progress for this long is lost, and may be queued again.
LOST_AFTER = timedelta(minutes=10)
_PROGRESS_SECONDS = 1.0
_WITHOUT_WORKERS = ("django.tasks.backends.immediate.", "django.tasks.backends.dummy.")


@dataclass(frozen=True)
class Operation:
    """An operation on guards: its name in URLs, its label and question, and what it does.

    ``command`` is the one that does the same, if the operation needs a worker. ``mark`` is "change" if clients may get
    other answers afterwards, "danger" if the guard stops answering.
    """

    name: str
    label: str | Promise
    question: str | Promise
    consequence: str | Promise
    command: str = ""
    mark: str = ""


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation(
            REBUILD,
            gettext_lazy("Rebuild"),
            gettext_lazy("Rebuild these filters?"),
            gettext_lazy(
                "Reads all rows and replaces the active filter with a new one. The active filter keeps answering "
                "meanwhile; fenced guards answer again afterwards."
            ),
            command="rebuild_filter",
        ),
        Operation(
            VERIFY,
            gettext_lazy("Verify"),
            gettext_lazy("Verify these filters?"),
            gettext_lazy(
                "Looks up every row of the database in the filter. If a row is missing, the guard is fenced: its "
                "requests pass until the next rebuild."
            ),
            command="verify_filter",
        ),
        Operation(
            SHADOW,
            gettext_lazy("Shadow"),
            gettext_lazy("Switch these guards to shadow mode?"),
            gettext_lazy(
                "Within a second, all requests pass. Requests that would have been answered 404 are counted and "
                "compared with the site's responses."
            ),
        ),
        Operation(
            ENFORCE,
            gettext_lazy("Enforce"),
            gettext_lazy("Switch these guards to enforce mode?"),
            gettext_lazy("Within a second, absent IDs are answered 404 again, if the guard has a valid filter."),
            mark="change",
        ),
        Operation(
            FENCE,
            gettext_lazy("Fence"),
            gettext_lazy("Fence these guards?"),
            gettext_lazy(
                "Within a second, all processes stop answering 404 for these guards: requests pass to the cache and "
                "the database until a user rebuilds the filters."
            ),
            mark="danger",
        ),
    )
}


def switch(guard: Guard, action: str, by: str) -> str:
    """Fence the guard, or switch its mode; return what was done. Raises :class:`DatabaseError`.

    A guard that is fenced by hand stays so until a rebuild without ``--if-needed``; a mode is kept by rebuilds.
    """
    if action == FENCE:
        return _fence(guard, BY_HAND + by)
    table = table_of(guard)
    state = table.current(guard.name)
    table.set_mode(guard.name, "" if action == guard.mode else action)
    logger.warning("bloomguard: guard %s switched to %s by %s", guard.name, action, by)
    if action == SHADOW:
        return _("In shadow mode: requests pass, and verdicts are compared with responses.")
    if not state.answers:  # it is fenced, or was never built
        return str(OPERATIONS[ENFORCE].consequence)
    return _("Enforcing: absent IDs are answered 404.")


def _fence(guard: Guard, reason: str) -> str:
    table = table_of(guard)
    while True:  # a rebuild or a fence of others may change the row meanwhile
        seen = table.current(guard.name)
        # Also without a filter: then `rebuild_filter --if-needed` builds none either.
        if table.swap(seen, **table.fenced_values(reason)):  # also if it is fenced already: now it is by hand
            break
    if seen.status != FENCED or seen.building:
        table.log_fenced(guard.name, reason)
    return _("Fenced: requests pass until a user rebuilds the filter.")


try:
    from django.tasks import task

    @task
    def work(what: str, name: str, user_pk: str) -> None:
        """Rebuild or verify the guard ``name`` for the user who requested it on the admin page."""
        run(what, name, user_pk)

except Exception as error:  # Django 5.2 has no tasks; or TASKS has no default backend, or one that cannot be made
    logger.debug("bloomguard cannot use TASKS: %s", error)
    work = None  # type: ignore[assignment]


def queue() -> Callable[[str, str, str], Any] | None:
    """Return ``enqueue(work, guard's name, user's pk)`` of the project's workers, ``None`` if it has no workers."""
    if work is None:
        return None
    backend = type(work.get_backend())
    is_without = f"{backend.__module__}.".startswith(_WITHOUT_WORKERS)
    return None if is_without else work.enqueue


def is_under_way(task: GuardTask) -> bool:
    """Return whether the task waits or runs, and had progress in the last ten minutes."""
    ended = task.status in (GuardTask.Status.DONE, GuardTask.Status.FAILED)
    return not ended and timezone.now() - task.seen_at < LOST_AFTER


def command(work: str, guards: Sequence[Guard]) -> str:
    """Return the command that does the same on a site without workers."""
    words = [OPERATIONS[work].command, *(guard.name for guard in guards)]
    if any(map(is_in_memory, guards)):
        return f"call_command({', '.join(map(repr, words))})"
    return " ".join(["python manage.py", *words])


def queue_work(work: str, guards: Sequence[Guard], user: Any) -> list[Guard]:
    """Queue the work for the guards that have no task under way, and return these guards; the admin's log says so.

    Raises :class:`ConfigurationError` if the project has no workers.
    """
    enqueue = queue()
    if enqueue is None:
        raise ConfigurationError("TASKS names no backend that has workers")
    busy = {task.name for task in GuardTask.objects.all() if is_under_way(task)}
    wanted = [guard for guard in guards if guard.name not in busy]
    for guard in wanted:
        _record(guard.name, work=work, status=GuardTask.Status.QUEUED, done=0, total=0, outcome="")
        try:
            enqueue(work, guard.name, str(user.pk))
        except BaseException:
            GuardTask.objects.filter(name=guard.name).delete()
            raise
        log(str(user.pk), guard.name, _("Requested: %(what)s.") % {"what": OPERATIONS[work].label})
    return wanted


def run(work: str, name: str, user_pk: str) -> None:
    """Do the work in a worker; record the outcome in the guard's task and in the admin's log, whatever it is."""
    _record(name, work=work, status=GuardTask.Status.RUNNING, done=0, total=0, outcome="")
    status, words = GuardTask.Status.FAILED, ""
    try:
        if is_in_memory(guard := registry[name]):  # to build one here would make the site's useless
            where = f"the store {guard.store!r} keeps filters in the memory of the site's process"
            raise ConfigurationError(f"{where}, which has to call {command(work, [guard])} itself")
        words = (_rebuild if work == REBUILD else _verify)(guard)
        status = GuardTask.Status.DONE
    except BaseException as error:
        words = _why(error, work, name)
        if not isinstance(error, EXPECTED):
            raise
    finally:
        _record(name, status=status, outcome=words[:500])
        log(user_pk, name, words)


def log(user_pk: str, name: str, words: str) -> None:
    """Add an entry about the guard ``name`` to the admin's log, if the user still exists."""
    from django.contrib.admin.models import CHANGE, LogEntry

    if get_user_model()._default_manager.filter(pk=user_pk).exists():
        LogEntry.objects.log_actions(user_pk, [GuardState(name=name)], CHANGE, words, single_object=True)


def _progress(name: str) -> Callable[[int, int], None]:
    """Return a function that saves a guard's progress in its task, at most once a second."""
    recorded_at = float("-inf")

    def save(done: int, total: int) -> None:
        nonlocal recorded_at
        if time.monotonic() - recorded_at >= _PROGRESS_SECONDS or done == total:
            recorded_at = time.monotonic()
            _record(name, done=done, total=total)

    return save


def _record(name: str, **changes: Any) -> None:
    GuardTask.objects.update_or_create(name=name, defaults={"seen_at": timezone.now(), **changes})


def _rebuild(guard: Guard) -> str:
    report = Rebuild(guard, progress=_progress(guard.name)).run()
    return _("Rebuilt from %(rows)s rows in %(seconds).1f s.") % {"rows": f"{report.rows:,}", "seconds": report.seconds}


def _verify(guard: Guard) -> str:
    findings = Verification(guard, progress=_progress(guard.name)).run()
    if not findings.generation:
        return _("Nothing was verified: no filter is active.")
    if findings.missing:
        least = "≥ " if findings.missing >= MOST_MISSING else ""
        return _("Verified and fenced: %(missing)s of %(rows)s rows are missing from its filter.") % {
            "missing": f"{least}{findings.missing:,}",
            "rows": f"{findings.rows:,}",
        }
    return _("Verified: all %(rows)s rows are in its filter.") % {"rows": f"{findings.rows:,}"}


def _why(error: BaseException, work: str, name: str) -> str:
    """Return why it failed; only with our own messages, because others may contain a row's value."""
    if isinstance(error, (RebuildError, ConfigurationError)) and error.__cause__ is None:
        return _("Failed: %(why)s") % {"why": error}
    cause = type(error.__cause__ or error).__name__
    return _("Failed (%(cause)s). Run “%(command)s” to see the reason.") % {
        "cause": cause,
        "command": f"manage.py {OPERATIONS[work].command} {name}",
    }
