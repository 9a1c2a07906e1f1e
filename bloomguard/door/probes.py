"""Probe the site for its 404 page, as different visitors, before the door opens.

The probes run through the whole middleware stack and Django's own URL resolution, for a path that no pattern matches
and for an absent ID of every route that the door may answer. The page is sent without Django only if all responses
agree, because then it does not depend on the request.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import time
import uuid
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from datetime import date
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any
from wsgiref.util import setup_testing_defaults

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.wsgi import WSGIRequest
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port
from django.urls import NoReverseMatch, Resolver404, resolve, reverse, set_script_prefix
from django.utils.crypto import get_random_string
from django.utils.http import parse_http_date_safe

from ..guards.fields import kind_of, value_field
from ..lookups.context import PROBE, contexts
from ..routes.openness import middleware_classes
from ..routes.table import NO_ID
from .page import DoorClosed, NotFoundPage, ProbeResponse, make_page
from .paths import DoorRoute
from .visitors import STRANGER, Visitor, visitor_with_message, visitors

logger = logging.getLogger("bloomguard")

#: (host, scheme) -> page.
Pages = dict[tuple[str, str], NotFoundPage]
#: The routes that were probed, and the pages.
_Found = tuple[list[DoorRoute], Pages]

#: Each host costs dozens of requests at start.
MOST_HOSTS = 100
_PORT = 8081
#: How many random IDs to try, as some may exist.
_TRIES = 5

_MOST = 2**63 - 1

_random = random.SystemRandom()


def hosts() -> list[str]:
    """Return the hosts in ``ALLOWED_HOSTS``; of an entry such as ``.example.com`` the domain itself."""
    found = []
    for allowed in settings.ALLOWED_HOSTS:
        if allowed == "*":
            continue
        name = allowed.lower().removeprefix(".")
        found.append(name)
        if settings.PREPEND_WWW and allowed.startswith("."):
            found.append(f"www.{name}")
    valid = [name for name in dict.fromkeys(found) if split_domain_port(name) == (name, "")]
    return valid[:MOST_HOSTS]


def take_pages(handler: BaseHandler, routes: list[DoorRoute]) -> _Found:
    """Return the routes that were probed, and the page of each host and scheme that responds with a plain 404.

    Raises :class:`DoorClosed` if there is no such page, or if two responses differ.
    """
    run = Probes(handler, routes).run
    if isinstance(handler, ASGIHandler):  # one event loop for all probes: with one loop per probe they take 50% longer
        run = async_to_sync(sync_to_async(run))
    if _get_running_loop() is None:  # in a copy of the context: a language that a probe activates does not stay active
        return copy_context().run(_as_probe, run)
    with ThreadPoolExecutor(1, "bloomguard-probes") as pool:  # Django forbids database queries where a loop runs
        return pool.submit(_as_probe, run).result()


class Probes:
    """One round of probes of ``handler`` for ``routes``."""

    def __init__(self, handler: BaseHandler, routes: list[DoorRoute]) -> None:
        self._handler = handler
        self._routes = routes
        self._paths: dict[DoorRoute, str] = {}

    def run(self) -> _Found:
        """See :func:`take_pages`."""
        names = hosts()
        if not names:
            raise DoorClosed("there is no host to probe: name your hosts in ALLOWED_HOSTS")
        for route in self._routes:
            if path := absent_path(route):
                self._paths[route] = path
            else:
                reason = "reverse() builds no path from an absent ID alone"
                logger.debug("bloomguard's door does not answer %s: %s", route.pattern.text, reason)
        if not self._paths:
            raise DoorClosed("no route has a path with an absent ID")
        self._unknown = unknown_path()
        pages: Pages = {}
        statuses = []
        for host, scheme in itertools.product(names, ("http", "https")):
            page = self._page(host, scheme, is_first=not pages)
            if isinstance(page, NotFoundPage):
                pages[host, scheme] = page
            else:
                statuses.append(f"{page.asked} has status {page.status}")
        if not pages:
            raise DoorClosed(f"the site does not respond with a plain 404: {statuses[0]}")
        return list(self._paths), pages

    def _page(self, host: str, scheme: str, *, is_first: bool) -> NotFoundPage | ProbeResponse:
        """Return the page, or the response if it is not a 404. Views get HEAD probes only on the first host."""
        with collect_statements() as sent:
            get = self._ask(host, scheme, self._unknown)
        if get.status != 404:
            return get
        if sent:
            raise DoorClosed(f"a 404 queries the database: {get.asked} reads {table_names(sent)}")
        head = self._ask(host, scheme, self._unknown, method="HEAD")
        everybody = [visitor.without(get.varies) for visitor in visitors()]
        others = [self._ask(host, scheme, self._unknown, visitor) for visitor in everybody if visitor != STRANGER]
        for route, path in self._paths.items():
            if "GET" in route.methods:
                others += [
                    self._ask(host, scheme, path, visitor, "GET", route) for visitor in (STRANGER, everybody[-1])
                ]
            if "HEAD" in route.methods and (is_first or "GET" not in route.methods):
                others.append(self._ask(host, scheme, path, STRANGER, "HEAD", route))
        with_port = self._ask(f"{host}:{_PORT}", scheme, self._unknown)
        unasked = frozenset({"cookie"} if self._shows_messages(get, host, scheme) else ())
        any_port = not get.difference(with_port)
        return make_page(get, head, others, any_port=any_port, varies=unasked, signs_in=_signing_in())

    def _shows_messages(self, get: ProbeResponse, host: str, scheme: str) -> bool:
        """Whether the page is another one for a visitor with a message in a cookie, which ``Vary`` does not name."""
        visitor = visitor_with_message()
        if visitor is None or "cookie" in get.varies:
            return False
        try:
            return bool(get.difference(self._ask(host, scheme, self._unknown, visitor)))
        except DoorClosed:  # the page deletes the cookie
            return True

    def _ask(
        self,
        host: str,
        scheme: str,
        path: str,
        visitor: Visitor = STRANGER,
        method: str = "GET",
        route: DoorRoute | None = None,
    ) -> ProbeResponse:
        asked = f"{method} {scheme}://{host}{path}{visitor.words and ' '}{visitor.words}"
        make = _asgi_request if isinstance(self._handler, ASGIHandler) else _wsgi_request
        request = make(host, scheme, path, visitor, method)
        if isinstance(self._handler, ASGIHandler):
            response: Any = async_to_sync(self._handler.get_response_async)(request)
        else:
            response = self._handler.get_response(request)
        if getattr(request, "urlconf", None) is not None:
            raise DoorClosed("a middleware sets request.urlconf")
        if request.path_info != path:
            raise DoorClosed("a middleware rewrites request.path_info")
        if response.status_code == 404:
            if response.cookies:
                raise DoorClosed(f"{asked} has Set-Cookie")
            if (parse_http_date_safe(response.headers.get("Expires", "")) or 0) > time.time() - 86_400:
                raise DoorClosed(f"{asked} has the header Expires, which depends on the time")
            if not isinstance(response, HttpResponse):
                raise DoorClosed(f"{asked} streams its body")
            if route is not None and getattr(request.resolver_match, "func", None) is not route.pattern.callback:
                raise DoorClosed(f"a middleware answers {asked} before its view runs")
        body = response.content if isinstance(response, HttpResponse) else b""
        return ProbeResponse(asked, method, response.status_code, response.reason_phrase, tuple(response.items()), body)


def _signing_in() -> frozenset[str]:
    """Return the keys of ``META`` by which ``RemoteUserMiddleware``, or the like, signs a visitor in."""
    found = [getattr(each, "header", None) for each in middleware_classes()]
    return frozenset(key for key in found if isinstance(key, str))


def _headers(host: str, scheme: str, visitor: Visitor) -> dict[str, str]:
    headers = {"host": host, **visitor.headers}
    if settings.SECURE_PROXY_SSL_HEADER:
        name, value = settings.SECURE_PROXY_SSL_HEADER
        headers[name.removeprefix("HTTP_").replace("_", "-").lower()] = value if scheme == "https" else "http"
    return headers


def _wsgi_request(host: str, scheme: str, path: str, visitor: Visitor, method: str) -> HttpRequest:
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": visitor.query,
        "SERVER_NAME": "localhost",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": visitor.client,
        "REMOTE_PORT": "50000",
        "wsgi.url_scheme": scheme,
    }
    for name, value in _headers(host, scheme, visitor).items():
        environ[f"HTTP_{name.replace('-', '_').upper()}"] = value
    setup_testing_defaults(environ)
    return WSGIRequest(environ)


def _asgi_request(host: str, scheme: str, path: str, visitor: Visitor, method: str) -> HttpRequest:
    headers = _headers(host, scheme, visitor).items()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": visitor.query.encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": (visitor.client, 50000),
        "server": ("localhost", 443 if scheme == "https" else 80),
    }
    return ASGIRequest(scope, BytesIO())


# -- paths with absent IDs


def unknown_path() -> str:
    """Return a path that no URL pattern matches. Raises :class:`DoorClosed` if none is found."""
    for depth in (1, 2, 3, 5, 8):
        path = "/" + "".join(f"{get_random_string(10, 'abcdefghijklmnopqrstuvwxyz')}/" for _ in range(depth))
        try:
            resolve(path, settings.ROOT_URLCONF)
        except Resolver404:
            return path
    raise DoorClosed("a URL pattern matches every path, so the page for a path without a pattern is unknown")


def absent_path(route: DoorRoute) -> str:
    """Return a path of ``route`` with an ID that is not in the database; empty if none is found."""
    guard = route.guard
    rows = guard._meta.rows()
    for draw in itertools.product(*(_draws(column, connections[rows.db]) for column in guard._meta.fields)):
        for _ in range(_TRIES):
            values = [each() for each in draw]
            path = _path(route, dict(zip(route.kwargs, values)))
            if not path or route.captured(path) is NO_ID:
                break  # try another kind of text
            if not rows.filter(**dict(zip(guard._meta.attnames, values))).exists():
                return path
    return ""


def _path(route: DoorRoute, kwargs: dict[str, Any]) -> str:
    """Return the route's path with these kwargs; empty if ``reverse()`` fails."""
    for view in (route.pattern.view_name, route.pattern.callback):
        try:
            return reverse(view, settings.ROOT_URLCONF, kwargs=kwargs)
        except NoReverseMatch:
            continue
    return ""


def _draws(column: models.Field[Any, Any], connection: BaseDatabaseWrapper) -> list[Callable[[], Any]]:
    """Return functions that draw a random value of a field; the converter of the path may accept only some."""
    column = value_field(column)
    kind = kind_of(column)
    if kind == "integer":
        _, most = connection.ops.integer_field_range(column.get_internal_type())
        return [partial(_random.randint, 1, min(most or _MOST, _MOST))]
    if kind == "uuid":
        return [uuid.uuid4]
    if kind == "date":
        return [lambda: date.fromordinal(_random.randint(1, date.max.toordinal()))]
    if isinstance(column, models.DecimalField):
        most, places = 10 ** min(column.max_digits or 15, 15), column.decimal_places or 0
        return [lambda: Decimal(_random.randrange(most)).scaleb(-places)]
    room = column.max_length or 20
    letters, figures = "abcdefghijklmnopqrstuvwxyz", "0123456789"
    texts = [(20, letters + figures), (20, letters), (15, figures), (2, letters.upper()), (3, letters.upper())]
    return [partial(get_random_string, min(size, room), allowed) for size, allowed in texts]


@contextmanager
def collect_statements() -> Iterator[list[str]]:
    """Collect the SQL that this thread sends in the block, on all connections."""
    sent: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        sent.append(str(sql))
        return execute(sql, *rest)

    with ExitStack() as stack:
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(note))
        yield sent


def table_names(sent: list[str]) -> str:
    """Return the tables in the statements, for messages: the statements themselves may contain values."""
    found = re.findall(r'\b(?:FROM|JOIN|INTO|UPDATE)\s+["`\[]?([\w.$]+)', " ".join(sent), re.IGNORECASE)
    return ", ".join(dict.fromkeys(found)) or "it"


# -- the context of the probes


def _as_probe(run: Callable[[], _Found]) -> _Found:
    contexts.set(PROBE)
    set_script_prefix("/")
    with _connections_closed(), _no_warnings():
        return run()


@contextmanager
def _connections_closed() -> Iterator[None]:
    """Close the connections that the block opens."""
    before = {alias for alias in connections if connections[alias].connection is not None}
    try:
        yield
    finally:
        for alias in set(connections) - before:
            connections[alias].close()


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep ``Not Found`` of probes out of the log; errors are still logged."""

    def is_logged(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or contexts.get() is not PROBE

    django = logging.getLogger("django.request")
    django.addFilter(is_logged)
    try:
        yield
    finally:
        django.removeFilter(is_logged)
