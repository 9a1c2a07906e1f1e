"""The guards in Django's admin: one page with their state, and a confirmation page before each operation.

The permission ``view_guardstate`` allows staff to view the page, ``operate_guardstate`` also to operate the guards.
"""

from __future__ import annotations

from typing import Any

import django
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.urls.resolvers import URLPattern
from django.utils.decorators import method_decorator
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_safe

from .dashboard.operations import OPERATIONS, Operation, command, is_under_way, log, queue, queue_work, switch
from .dashboard.overview import PERIODS, Overview
from .exceptions import ConfigurationError
from .guards import Guard, registry
from .models import GuardState, GuardTask


@admin.register(GuardState)
class GuardAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """The page of all guards, in place of the admin's change list."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return ``False``: guards are declared in an app's ``guards.py``, and state rows change by operations."""
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may view or operate guards."""
        return self.may_operate(request) or super().has_view_permission(request, obj)

    def may_operate(self, request: HttpRequest) -> bool:
        """Return whether the user may rebuild, verify, fence and switch guards."""
        return bool(request.user.has_perm("bloomguard.operate_guardstate"))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> GuardState | None:
        """Return the state row, or an unsaved one for a guard that was never built but may have a history."""
        unsaved = GuardState(name=object_id) if registry.get(object_id) is not None else None
        return super().get_object(request, object_id, from_field) or unsaved

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of the page, its progress and confirmations, and of a guard's charts and history."""
        view = self.admin_site.admin_view
        operate = view(self.operate_view)
        # Operations commit at once on another connection; a request's transaction would lock it out on SQLite.
        for alias in connections:
            operate = transaction.non_atomic_requests(alias)(operate)
        return [
            path("", view(self.changelist_view), name="bloomguard_guardstate_changelist"),
            path("progress/", view(self.progress_view), name="bloomguard_guardstate_progress"),
            path("operate/", operate, name="bloomguard_guardstate_operate"),
            path("<path:object_id>/history/", view(self.history_view), name="bloomguard_guardstate_history"),
            path("<path:object_id>/change/", view(self.change_view), name="bloomguard_guardstate_change"),
        ]

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the page; ``?period=hour|day|month`` and ``?guard=name`` select what its charts show."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        period = PERIODS.get(request.GET.get("period", ""), PERIODS["day"])
        name = request.GET.get("guard")
        context = {
            "title": _("Guards"),
            "overview": Overview(list(registry), period, _guards([name])[0] if name else None),
            "periods": PERIODS.values(),
            "operations": OPERATIONS.values() if self.may_operate(request) else (),
            **(extra_context or {}),
        }
        return self._respond(request, "bloomguard/overview.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect a guard's URL, which the admin's log links to, to the page with its charts."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(f"{self._page()}?{urlencode({'guard': unquote(object_id)})}")

    @method_decorator(require_safe)
    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """Return the progress of the workers' tasks as JSON, for the page's script."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        tasks = [
            {"guard": task.name, "busy": is_under_way(task), "done": task.done, "total": task.total}
            for task in GuardTask.objects.all()
        ]
        return JsonResponse({"tasks": tasks}, headers={"Cache-Control": "no-store"})

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def operate_view(self, request: HttpRequest) -> HttpResponse:
        """On GET, ask whether to run ``?action=`` on each ``guard=``; on POST, run it."""
        if not self.may_operate(request):
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        operation = OPERATIONS.get(given.get("action", ""))
        if operation is None:
            raise Http404("no such operation")
        guards = _guards(given.getlist("guard"))
        if request.method == "POST" and guards and self._can_do(operation):
            self._do(request, operation, guards)
            return HttpResponseRedirect(self._page())
        context = {
            "title": operation.question,
            "operation": operation,
            "guards": guards,
            "can_do": self._can_do(operation),
            "command": command(operation.name, guards) if operation.command else "",
        }
        return self._respond(request, "bloomguard/operate.html", context)

    def _respond(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        # Django 6.1 and newer writes the breadcrumbs as a list.
        shared = {"opts": self.opts, "breadcrumbs_are_a_list": django.VERSION >= (6, 1)}
        return TemplateResponse(request, template, {**self.admin_site.each_context(request), **shared, **context})

    def _page(self) -> str:
        return reverse("admin:bloomguard_guardstate_changelist", current_app=self.admin_site.name)

    @staticmethod
    def _can_do(operation: Operation) -> bool:
        return not operation.command or queue() is not None

    def _do(self, request: HttpRequest, operation: Operation, guards: list[Guard]) -> None:
        if operation.command:
            self._queue(request, operation, guards)
            return
        for guard in guards:
            try:
                outcome = switch(guard, operation.name, f"{request.user.get_username()} in the admin")
            except DatabaseError as error:
                words = _("Guard %(guard)s: nothing was done because the database failed (%(error)s).")
                messages.error(request, words % {"guard": guard.name, "error": type(error).__name__})
                continue
            log(str(request.user.pk), guard.name, outcome)
            messages.success(request, _("Guard %(guard)s: %(what)s") % {"guard": guard.name, "what": outcome})

    def _queue(self, request: HttpRequest, operation: Operation, guards: list[Guard]) -> None:
        queued, failed = [], []
        for guard in guards:
            try:
                queued += queue_work(operation.name, [guard], request.user)
            except Exception as error:  # of the project's backend, whose queue does not answer
                failed.append(guard)
                words = _("Guard %(guard)s: it was not queued because the queue failed (%(error)s).")
                messages.error(request, words % {"guard": guard.name, "error": type(error).__name__})
        if queued:
            words = ngettext(
                "%(count)d guard is queued for a worker.", "%(count)d guards are queued for a worker.", len(queued)
            )
            messages.success(request, words % {"count": len(queued)})
        for guard in guards:
            if guard not in queued and guard not in failed:
                messages.warning(
                    request, _("Guard %(guard)s: a task for it is already queued or running.") % {"guard": guard.name}
                )


def _guards(names: list[Any]) -> list[Guard]:
    """Return the guards of these names, each once; raises :class:`Http404` if there is no such guard."""
    try:
        return [registry[name] for name in dict.fromkeys(names)]
    except ConfigurationError as error:
        raise Http404("no such guard") from error
