"""The guards in Django's admin: one page that tells how they stand, and a confirmation before anything is done.

``view_guardstate`` lets staff look, ``operate_guardstate`` lets them look and act.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.urls.resolvers import URLPattern
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .guards import Guard, registry
from .models import GuardState, GuardTask
from .operating.overview import PERIODS, Overview
from .operating.tasks import REBUILD, VERIFY, ask_for, command, is_under_way, log, queue
from .sync.fencing import table_of

_READS = ("GET", "HEAD")
SHADOW, ENFORCE = "shadow", "enforce"


@dataclass(frozen=True)
class Operation:
    """Something that the page can do with guards: its name in addresses, for people, and what comes of it."""

    name: str
    label: str | Promise
    question: str | Promise
    consequence: str | Promise
    by_worker: bool = False


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation(
            REBUILD,
            gettext_lazy("Rebuild"),
            gettext_lazy("Rebuild these filters?"),
            gettext_lazy(
                "All rows are read, and a new filter takes the place of the one that answers. That one goes on "
                "meanwhile; guards that are fenced answer again afterwards."
            ),
            by_worker=True,
        ),
        Operation(
            VERIFY,
            gettext_lazy("Verify"),
            gettext_lazy("Verify these filters?"),
            gettext_lazy(
                "The filter is asked for every row of the database. A guard whose filter lacks a row is fenced: its "
                "requests pass until it is rebuilt."
            ),
            by_worker=True,
        ),
        Operation(
            "fence",
            gettext_lazy("Fence"),
            gettext_lazy("Take these filters out of use?"),
            gettext_lazy(
                "Within a second no process answers 404 for these guards any more: all requests pass to the cache "
                "and the database until the guard is rebuilt."
            ),
        ),
        Operation(
            SHADOW,
            gettext_lazy("Shadow"),
            gettext_lazy("Let these guards only watch?"),
            gettext_lazy(
                "Within a second all requests pass. What would have been answered 404 is counted, and compared with "
                "what the site answers."
            ),
        ),
        Operation(
            ENFORCE,
            gettext_lazy("Enforce"),
            gettext_lazy("Let these guards answer?"),
            gettext_lazy(
                "Within a second absent IDs are answered 404 again, where the guard has a filter that is valid."
            ),
        ),
    )
}


@admin.register(GuardState)
class GuardAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    """The page of all guards, under the name that the admin gives the list of a model."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds guards here: an app's ``guards.py`` does."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody edits state rows: they change by compare-and-set alone."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes state rows."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may look, and whoever may act."""
        return self.may_operate(request) or super().has_view_permission(request, obj)

    def may_operate(self, request: HttpRequest) -> bool:
        """Whether the user may rebuild, verify, fence and switch guards."""
        return bool(request.user.has_perm("bloomguard.operate_guardstate"))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> GuardState | None:
        """A guard that was never built has no row, but may have a history."""
        known = any(guard.name == object_id for guard in registry)
        return super().get_object(request, object_id, from_field) or (GuardState(name=object_id) if known else None)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What was done with a guard on this page, and by whom."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)

    def get_urls(self) -> list[URLPattern]:
        """The page, its progress, its confirmations; a guard's own address and its history."""
        view = self.admin_site.admin_view
        operate = view(self.operate_view)
        # What it does is committed at once, by a connection that the transaction of a request would lock out on SQLite.
        for alias in connections:
            operate = transaction.non_atomic_requests(alias)(operate)
        return [
            path("", view(self.changelist_view), name="bloomguard_guardstate_changelist"),
            path("progress/", view(self.progress_view), name="bloomguard_guardstate_progress"),
            path("operate/", operate, name="bloomguard_guardstate_operate"),
            path("<path:object_id>/history/", view(self.history_view), name="bloomguard_guardstate_history"),
            path("<path:object_id>/change/", view(self.change_view), name="bloomguard_guardstate_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The page: ``?period=hour|day|month`` and ``?guard=name`` say what its charts show."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in _READS:
            return HttpResponseNotAllowed(_READS)
        period = PERIODS.get(request.GET.get("period", ""), PERIODS["day"])
        name = request.GET.get("guard")
        chosen = _guards([name])[0] if name else None
        context = {
            **self.admin_site.each_context(request),
            "title": _("Guards"),
            "opts": self.opts,
            "overview": Overview(list(registry), period, chosen),
            "periods": PERIODS.values(),
            "operations": OPERATIONS.values() if self.may_operate(request) else (),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "bloomguard/overview.html", {**context, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A guard's own address, which the admin's log links to, is the page with its charts."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(f"{self._page()}?{urlencode({'guard': object_id})}")

    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """How far the workers are, for the page's script: a task for each guard that has one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in _READS:
            return HttpResponseNotAllowed(_READS)
        tasks = [
            {"guard": task.name, "busy": is_under_way(task), "done": task.done, "total": task.total}
            for task in GuardTask.objects.all()
        ]
        response = JsonResponse({"tasks": tasks})
        response["Cache-Control"] = "no-store"
        return response

    def operate_view(self, request: HttpRequest) -> HttpResponse:
        """GET asks whether ``?action=`` should be done with each ``guard=``; POST does it."""
        if not self.may_operate(request):
            raise PermissionDenied
        if request.method not in (*_READS, "POST"):
            return HttpResponseNotAllowed([*_READS, "POST"])
        given = request.POST if request.method == "POST" else request.GET
        operation = OPERATIONS.get(given.get("action", ""))
        if operation is None:
            raise Http404("no such operation")
        guards = _guards(given.getlist("guard"))
        if request.method == "POST" and guards and self._can_do(operation):
            self._do(request, operation, guards)
            return HttpResponseRedirect(self._page())
        context = {
            **self.admin_site.each_context(request),
            "title": operation.question,
            "opts": self.opts,
            "operation": operation,
            "guards": guards,
            "can_do": self._can_do(operation),
            "command": command(operation.name, guards) if operation.by_worker else "",
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "bloomguard/operate.html", context)

    def _page(self) -> str:
        return reverse("admin:bloomguard_guardstate_changelist", current_app=self.admin_site.name)

    @staticmethod
    def _can_do(operation: Operation) -> bool:
        return not operation.by_worker or queue() is not None

    def _do(self, request: HttpRequest, operation: Operation, guards: list[Guard]) -> None:
        if operation.by_worker:
            self._ask_for(request, operation, guards)
            return
        for guard in guards:
            try:
                said = _DO_NOW[operation.name](guard, request.user)
            except DatabaseError as error:
                words = _("Guard %(guard)s: nothing was done, for the database failed (%(error)s).")
                messages.error(request, words % {"guard": guard.name, "error": type(error).__name__})
                continue
            log(str(request.user.pk), guard.name, said)
            messages.success(request, _("Guard %(guard)s: %(what)s") % {"guard": guard.name, "what": said})

    def _ask_for(self, request: HttpRequest, operation: Operation, guards: list[Guard]) -> None:
        asked = ask_for(operation.name, guards, request.user)
        for guard in asked:
            log(str(request.user.pk), guard.name, _("Asked for: %(what)s.") % {"what": operation.label})
        if asked:
            words = ngettext(
                "A worker will see to %(count)d guard.", "A worker will see to %(count)d guards.", len(asked)
            )
            messages.success(request, words % {"count": len(asked)})
        for guard in guards:
            if guard not in asked:
                messages.warning(request, _("Guard %(guard)s: a worker is at it already.") % {"guard": guard.name})


def _guards(names: list[Any]) -> list[Guard]:
    """The guards of these names, each once; raises :class:`Http404` where there is none."""
    known = {guard.name: guard for guard in registry}
    try:
        return [known[name] for name in dict.fromkeys(names)]
    except KeyError as error:
        raise Http404("no such guard") from error


def _fence(guard: Guard, user: Any) -> str:
    table = table_of(guard)
    if not table.current(guard.name).generations:
        return _("There is no filter to take out of use.")
    table.fence(guard.name, f"fenced by {user.get_username()} in the admin")
    return _("Fenced: requests pass until it is rebuilt.")


def _shadow(guard: Guard, user: Any) -> str:
    _switch(guard, SHADOW)
    return _("In shadow mode: requests pass, and are compared.")


def _enforce(guard: Guard, user: Any) -> str:
    _switch(guard, ENFORCE)
    return _("Enforcing: absent IDs are answered 404.")


def _switch(guard: Guard, mode: str) -> None:
    table_of(guard).switch(guard.name, "" if mode == guard.mode else mode)


_DO_NOW: dict[str, Callable[[Guard, Any], str]] = {"fence": _fence, SHADOW: _shadow, ENFORCE: _enforce}
