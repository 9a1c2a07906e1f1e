"""The site's own answer to a request for a row that does not exist."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import get_resolver, get_urlconf
from django.views.debug import technical_404_response

from ..log_once import LogOnce
from .table import GuardedRoute

_log = LogOnce()


def not_found(request: HttpRequest, route: GuardedRoute) -> HttpResponseBase | None:
    """What the site's ``handler404`` answers if the view raises ``Http404``; ``None`` if it fails without the view.

    May render a template: on an event loop, Django calls it in a thread.
    """
    error = Http404(route.message)
    try:
        if settings.DEBUG:
            return technical_404_response(request, error)
        handler: Any = get_resolver(get_urlconf()).resolve_error_handler(404)
        response: Any = handler(request, exception=error)
        if not getattr(response, "is_rendered", True) and callable(getattr(response, "render", None)):
            response = response.render()
        if isinstance(response, HttpResponseBase) and response.status_code < 500:
            return response
        route.guard.tallies["error"]()
    except Exception as failure:
        route.guard.tallies["error"]()
        _log.error(failure, "bloomguard lets requests to %s pass: handler404 fails before the view", route.guard.name)
    return None
