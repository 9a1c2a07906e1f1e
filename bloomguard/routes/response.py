"""The site's own 404, for a guard that answers before the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import get_resolver, get_urlconf
from django.utils.translation import gettext
from django.views.debug import technical_404_response

from ..process import log_once

if TYPE_CHECKING:
    from .table import GuardedRoute


def not_found(request: HttpRequest, route: GuardedRoute) -> HttpResponseBase | None:
    """Return the response of the site's ``handler404`` to the view's ``Http404``; ``None`` if the handler fails.

    The message is the view's own: a site's 404 page may show it. Not for an event loop: it may render a template.
    """
    shown = route.pattern.shown
    if shown is None:
        message = f"No {route.guard.model._meta.object_name} matches the given query."
    else:
        name = shown.model._meta.verbose_name
        message = gettext("No %(verbose_name)s found matching the query") % {"verbose_name": name}
    error = Http404(message)
    try:
        if settings.DEBUG:
            return technical_404_response(request, error)
        handler: Any = get_resolver(get_urlconf()).resolve_error_handler(404)
        response: Any = handler(request, exception=error)
        if not getattr(response, "is_rendered", True) and callable(getattr(response, "render", None)):
            response = response.render()
        if isinstance(response, HttpResponseBase) and response.status_code < 500:
            return response
        route.guard._runtime.counters["error"]()
    except Exception as failure:
        route.guard._runtime.counters["error"]()
        log_once.error(
            failure, "bloomguard lets requests for %s pass: handler404 fails before the view", route.guard.name
        )
    return None
