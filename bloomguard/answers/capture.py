"""The site's own 404 page as bytes, taken once at start, for the front door.

The handler's whole middleware stack runs, with a view that raises ``Http404``, for two visitors who have nothing in
common: path, host, cookies, browser, language, and the reason. What both answers share does not depend on the request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.wsgi import WSGIRequest
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import ResolverMatch

logger = logging.getLogger("bloomguard")

SMALL_BODY = b"<!doctype html><title>Not Found</title><h1>Not Found</h1><p>There is no such page.</p>"

#: Said of one body, or of one moment.
_OF_THE_ANSWER = frozenset(
    {"age", "cache-control", "content-length", "date", "etag", "expires", "last-modified", "set-cookie"}
)
_OF_THE_BODY = frozenset({"content-encoding", "content-language", "content-type"})
#: What a page may vary with while one body is right for everybody who is answered.
_HARMLESS = frozenset({"accept-encoding", "cookie", "origin"})
#: Each costs a run through all middleware at start.
_MOST_HOSTS = 100


@dataclass(frozen=True, eq=False)
class Page:
    """A 404 that is ready to be sent. With ``by_cookie`` it is right only for requests without a cookie."""

    body: bytes
    headers: tuple[tuple[str, str], ...]
    by_cookie: bool


class Unfit(Exception):
    """The site cannot have a front door; the message is the reason."""


def capture(handler: BaseHandler, *, secure: bool) -> Page | None:
    """The page for requests over HTTPS or HTTP; ``None`` where the site answers them with no 404 (but a redirect, say).

    Takes place in a thread of its own, so that an event loop or a connection of this one is not touched. Raises
    :class:`Unfit`.
    """
    found: list[HttpResponse | None] = []
    reasons: list[str] = []

    def ask() -> None:
        try:
            with _probing(handler, reasons):
                one, other, *more = _hosts()
                found.extend([_answer(handler, secure, 0, one), _answer(handler, secure, 1, other)])
                for host in more:  # they may have a URLconf of their own
                    _answer(handler, secure, 0, host)
        finally:
            connections.close_all()

    thread = threading.Thread(target=ask, name="bloomguard-capture")
    thread.start()
    thread.join()
    if reasons:
        raise Unfit(reasons[0])
    one, other = found or (None, None)
    return None if one is None or other is None else _common(one, other)


def _common(one: HttpResponse, other: HttpResponse) -> Page:
    headers = {name: value for name, value in one.items() if other.headers.get(name) == value}
    varies = {name.strip().lower() for name in f"{one.get('Vary', '')},{other.get('Vary', '')}".split(",")} - {""}
    kept = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_ANSWER}
    body = one.content
    if one.content != other.content or varies - _HARMLESS or "Content-Encoding" in kept:
        body = SMALL_BODY
        kept = {name: value for name, value in kept.items() if name.lower() not in _OF_THE_BODY | {"vary"}}
        kept["Content-Type"] = "text/html; charset=utf-8"
        varies = set()
    kept |= {"Cache-Control": "no-store", "Content-Length": str(len(body))}
    return Page(body, tuple(kept.items()), "cookie" in varies)


def _answer(handler: BaseHandler, secure: bool, visitor: int, host: str) -> HttpResponse | None:
    request = _request(handler, secure, visitor, host)
    if isinstance(handler, ASGIHandler):
        response: HttpResponseBase = async_to_sync(handler.get_response_async)(request)
    else:
        response = handler.get_response(request)
    return response if response.status_code == 404 and isinstance(response, HttpResponse) else None


def _request(handler: BaseHandler, secure: bool, visitor: int, host: str) -> HttpRequest:
    path = ("/bloomguard/probe/", "/another/7/")[visitor]
    headers = {"host": host}
    if visitor:
        headers |= {
            "accept-language": "de,fr;q=0.5",
            "cookie": "bloomguard=probe; csrftoken=abcdefghijklmnopqrstuvwxyz012345",
            "user-agent": "Mozilla/5.0",
        }
    if settings.SECURE_PROXY_SSL_HEADER:
        name, value = settings.SECURE_PROXY_SSL_HEADER
        headers[name.removeprefix("HTTP_").replace("_", "-").lower()] = value if secure else "http"
    scheme = "https" if secure else "http"
    request: HttpRequest
    if isinstance(handler, ASGIHandler):
        request = ASGIRequest(
            {
                "type": "http",
                "method": "GET",
                "path": path,
                "scheme": scheme,
                "query_string": b"",
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            },
            BytesIO(),
        )
    else:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "443" if secure else "80",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.url_scheme": scheme,
            "wsgi.input": BytesIO(),
        }
        environ |= {f"HTTP_{name.replace('-', '_').upper()}": value for name, value in headers.items()}
        request = WSGIRequest(environ)
    request.META["bloomguard.probe"] = visitor
    return request


def _hosts() -> list[str]:
    """Hosts that the site takes for its own, two at least: different ones if there are, then all others it names."""
    first, *others = settings.ALLOWED_HOSTS or ["localhost"]
    last = others.pop() if others else first
    return [_host(first), _host(last, "probe."), *map(_host, others[:_MOST_HOSTS])]


def _host(allowed: str, prefix: str = "") -> str:
    name = "localhost" if allowed == "*" else f"{prefix}{allowed[1:]}" if allowed.startswith(".") else allowed
    return f"www.{name}" if settings.PREPEND_WWW and not name.startswith("www.") else name


@contextmanager
def _probing(handler: BaseHandler, reasons: list[str]) -> Iterator[None]:
    """While this lasts, ``handler`` finds a view for a probe that says that nothing was found, and logs nothing.

    What shows that the path alone does not tell what is asked for goes into ``reasons``.
    """
    resolve_request: Callable[[HttpRequest], ResolverMatch] = handler.resolve_request

    def resolve_probe(request: HttpRequest) -> Any:
        visitor = request.META.get("bloomguard.probe")
        if visitor is None:
            return resolve_request(request)
        if getattr(request, "urlconf", None) is not None:
            reasons.append("a middleware sets request.urlconf")
        if request.path_info != request.META["PATH_INFO"]:
            reasons.append("a middleware rewrites request.path_info")

        def view(request: HttpRequest) -> NoReturn:
            raise Http404(("no such page", "nothing here")[visitor])

        view.login_required = False  # type: ignore[attr-defined]
        view._non_atomic_requests = set(connections)  # type: ignore[attr-defined]
        request.resolver_match = match = ResolverMatch(view, (), {}, url_name="bloomguard-probe")
        return match

    def is_news(record: logging.LogRecord) -> bool:
        asked = getattr(getattr(record, "request", None), "META", {})
        return record.levelno >= logging.ERROR or "bloomguard.probe" not in asked

    django = logging.getLogger("django.request")
    django.addFilter(is_news)
    handler.resolve_request = resolve_probe  # type: ignore[method-assign]
    try:
        yield
    finally:
        del handler.resolve_request
        django.removeFilter(is_news)
