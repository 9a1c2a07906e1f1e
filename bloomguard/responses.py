"""The answer to a request for what does not exist: the site's own 404 page."""

from __future__ import annotations

from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest, HttpResponseBase


def not_found(request: HttpRequest, guard_name: str) -> HttpResponseBase:
    """What the site answers when a view raises ``Http404``, not to be stored by anybody.

    A cache on the way would otherwise keep the 404 past the row's creation.
    """
    response = response_for_exception(request, Http404(f"no such {guard_name}"))
    response.headers["Cache-Control"] = "no-store"
    if not response.streaming and not response.has_header("Content-Length"):
        response.headers["Content-Length"] = str(len(response.content))
    return response
