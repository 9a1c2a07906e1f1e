"""The door: decide which requests it answers, and with which page.

Everything is prepared once, when ``shield()`` is called. Requests that it cannot decide for certain pass to Django.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.core.handlers.base import BaseHandler
from django.db import DatabaseError
from django.urls import get_resolver, is_valid_path
from django.utils import translation

from .. import conf
from ..guards import Guard
from ..guards.runtime import Known
from ..lookups.context import KNOWN, LookupContext
from ..process import log_once
from ..routes.openness import are_passing
from ..routes.table import NO_ID, table_for
from ..state.verdicts import MAYBE, Verdict
from .page import DoorClosed, NotFoundPage
from .paths import DoorRoute, Index, own_resolvers
from .probes import take_pages

logger = logging.getLogger("bloomguard")

_SHUT = {
    "DEBUG": "DEBUG is on, so Django sends its technical 404 page",
    "FORCE_SCRIPT_NAME": "FORCE_SCRIPT_NAME is set",
    "DISALLOWED_USER_AGENTS": "DISALLOWED_USER_AGENTS is set, so Django has to check each request",
}


class Door:
    """The door of one site, built by :func:`open_door`. Raises :class:`DoorClosed` if it has to stay shut.

    ``index`` maps a path to the routes that it may match. ``methods`` are the HTTP methods that the door answers.
    """

    def __init__(self, handler: BaseHandler) -> None:
        self._urlconf = settings.ROOT_URLCONF
        self._resolver = get_resolver(self._urlconf)
        if odd := next(own_resolvers(self._urlconf), None):
            raise DoorClosed(f"{odd!r} in the URLconf has its own way to resolve paths")
        if not are_passing(handler, "_view_middleware"):
            raise DoorClosed("a middleware has a process_view of its own, which may give a view another ID")
        table = table_for(self._urlconf)
        routes = []
        for route in table.open:
            if route.not_at_door:
                logger.debug("bloomguard's door does not answer %s: %s", route.pattern.text, route.not_at_door)
            else:
                routes.append(DoorRoute(route, table.patterns))
        if not routes:
            raise DoorClosed("no guarded route is open and decided by its path alone")
        routes, self._pages = take_pages(handler, routes)
        self.index = Index(routes)
        self.methods = frozenset(method for route in routes for method in route.methods)
        #: Whether ``LocaleMiddleware`` redirects a 404 to the same path in a language, where a pattern takes that.
        self._adds_language = all(is_language_prefix_patterns_used(self._urlconf))
        self.takes_forwarded_host: bool = settings.USE_X_FORWARDED_HOST
        #: The header with the scheme of the request, and its value for HTTPS; empty if Django reads none.
        self.proto_header, self._secure_value = settings.SECURE_PROXY_SSL_HEADER or ("", "")

    def page(self, host: str, scheme: str, forwarded_proto: str | None) -> NotFoundPage | None:
        """Return the page for the host and the scheme of a request; ``None`` if Django has to answer.

        ``forwarded_proto`` is the request's value of the header in ``SECURE_PROXY_SSL_HEADER``, if there is one.
        """
        if forwarded_proto is not None:
            scheme = "https" if forwarded_proto.split(",", 1)[0].strip() == self._secure_value else "http"
        if page := self._pages.get((host, scheme)):
            return page
        name, _, port = host.rpartition(":")
        page = self._pages.get((name, scheme)) if port.isascii() and port.isdecimal() else None
        return page if page is not None and page.any_port else None

    # The ID is read from the path in a fast way first, and confirmed as Django reads it only if there is no such row.
    # ``carrier`` is the WSGI environment or the ASGI scope: it takes the decisions to the middleware, and the guards
    # that answered MAYBE, which the routes need not ask again.

    def ask(self, method: str, path: str, routes: Sequence[DoorRoute], carrier: dict[str, Any]) -> Guard | None:
        """Return the guard of the first of ``routes`` that proves the row of ``path`` absent, if any."""
        known: Known = {}
        passed: list[Guard] = []
        carrier[KNOWN] = known, passed
        for route in routes:
            value = route.read(path)
            if value is NO_ID:
                continue
            # Hot path: a full check needs a context, the short one does not.
            decision = route.guard._runtime.short(known, value) or LookupContext(known=known).ask(route.guard, value)
            if decision is MAYBE:
                passed.append(route.guard)
            elif decision.verdict is Verdict.ABSENT and route.confirm(method, path, value):
                return route.guard if self._is_current() and not self._is_redirected(path) else None
        return None

    async def aask(self, method: str, path: str, routes: Sequence[DoorRoute], carrier: dict[str, Any]) -> Guard | None:
        """Async :meth:`ask`: awaits a store on a server, and queries the database in a thread."""
        context = LookupContext()
        passed: list[Guard] = []
        carrier[KNOWN] = context.known, passed
        for route in routes:
            value = route.read(path)
            if value is NO_ID:
                continue
            decision = await context.aask(route.guard, value)
            if decision is MAYBE:
                passed.append(route.guard)
            elif decision.verdict is Verdict.ABSENT and route.confirm(method, path, value):
                return route.guard if self._is_current() and not self._is_redirected(path) else None
        return None

    def failed(self, error: Exception) -> None:
        """Log an error inside bloomguard, once per exception type."""
        log_once.error(error, "bloomguard's door passes requests to Django because of an internal error")

    def _is_current(self) -> bool:
        """Whether the URLconf is still the one that the door was built for; if not, shut the door for good."""
        if get_resolver(settings.ROOT_URLCONF) is self._resolver:
            return True
        if self._pages:
            self.index, self._pages = Index(()), {}
            logger.info("bloomguard's door is shut: the site's URLs were reloaded")
        return False

    def _is_redirected(self, path: str) -> bool:
        """Whether ``LocaleMiddleware`` would redirect the 404 of ``path`` to a path of ``i18n_patterns``."""
        if not self._adds_language:
            return False
        language = settings.LANGUAGE_CODE  # a page that varies with the language is for requests that name none
        with translation.override(language):
            return any(is_valid_path(f"/{language}{path}{slash}", self._urlconf) for slash in ("", "/"))


def open_door(application: Any) -> Door | None:
    """Return the door of ``application``, or log the reason and return ``None`` if it has to stay shut."""
    reason = next((reason for setting, reason in _SHUT.items() if getattr(settings, setting)), "")
    if not conf.settings.is_enabled:
        reason = "BLOOMGUARD['ENABLED'] is not True"
    if not isinstance(application, BaseHandler):  # no error: a package may wrap it in production alone
        reason = f"shield() was given {application!r}, not Django's handler. Put other wrappers around shield()"
    try:
        if not reason:
            return Door(application)
    except DoorClosed as closed:
        reason = str(closed)
    except DatabaseError as error:
        reason = f"the search for absent IDs in the database failed ({type(error).__name__})"
    except Exception:
        logger.exception("bloomguard's door stays shut because of an error")
        return None
    logger.log(logging.INFO if settings.DEBUG else logging.WARNING, "bloomguard's door stays shut: %s", reason)
    return None
