"""The answer to a request for what does not exist: the site's own 404 page."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseNotFound
from django.urls import set_urlconf

from .pages import static_body


def not_found(request: HttpRequest, guard_name: str) -> HttpResponseBase:
    """What the site answers when a view raises ``Http404``, not to be stored by anybody.

    A cache on the way would otherwise keep the 404 past the row's creation.
    """
    response = not_found_now(request, now=False)
    if response is None:
        response = response_for_exception(request, Http404(f"no such {guard_name}"))
        response.headers["Cache-Control"] = "no-store"
        if not response.streaming and not response.has_header("Content-Length"):
            response.headers["Content-Length"] = str(len(response.content))
    return response


def not_found_now(request: HttpRequest, *, now: bool = True) -> HttpResponseBase | None:
    """The same where the site's page is ready, and nothing has to be rendered; else ``None``."""
    if urlconf := getattr(request, "urlconf", None):
        set_urlconf(urlconf)  # as Django does when it resolves the path: its ``handler404`` is the one that counts
    body = static_body(request, now=now)
    if body is None:
        return None
    return HttpResponseNotFound(body, headers={"Cache-Control": "no-store", "Content-Length": str(len(body))})


def not_found_by_framework(request: Any, guard_name: str) -> NoReturn:
    """Raise ``Http404`` where ``request`` is REST framework's, which makes the answer of it, not to be stored."""
    with suppress(AttributeError, KeyError, TypeError):
        request.parser_context["view"].headers["Cache-Control"] = "no-store"
    raise Http404(f"no such {guard_name}")
