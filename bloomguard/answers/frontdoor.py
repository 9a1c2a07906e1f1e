"""The front door: guarded routes, answered before Django makes a request of anything.

What has to be known is worked out once at start: the routes whose paths say everything, the site's own 404 page, the
hosts. Whatever is not known for certain goes on to Django as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.http.request import split_domain_port, validate_host

from ..exceptions import ConfigurationError
from ..guards import Guard
from ..log_once import LogOnce
from ..routes import Decide, GuardedRoute, Index, table_for
from ..routing.reading import NO_ID
from ..verdicts import MAYBE, Verdict
from .capture import Page, Unfit, capture

logger = logging.getLogger("bloomguard")

#: Hosts whose answer is kept: with a wildcard in ``ALLOWED_HOSTS`` anybody may invent more.
_HOSTS = 1_000


class FrontDoor:
    """What :func:`bloomguard.wsgi.shield` and its ASGI twin share; made by :func:`front_door`."""

    def __init__(self, handler: BaseHandler) -> None:
        routes = [route for route in table_for(settings.ROOT_URLCONF).early if is_certain(route)]
        self.methods = frozenset(method for route in routes for method in route.methods) & {"GET", "HEAD"}
        self._index = Index(routes)
        self._pages = {secure: capture(handler, secure=secure) for secure in (False, True)} if routes else {}
        self._hosts: dict[str, bool] = {}
        self._log = LogOnce()
        self.takes_forwarded_host: bool = settings.USE_X_FORWARDED_HOST
        self.proxy_header: tuple[str, str] | None = settings.SECURE_PROXY_SSL_HEADER

    @property
    def is_open(self) -> bool:
        """Whether it can answer any request at all."""
        return any(page is not None for page in self._pages.values())

    def page(self, host: str, secure: bool, has_cookie: bool) -> Page | None:
        """The page for who asks so, or ``None`` where Django has to answer."""
        page = self._pages[secure]
        if page is None or (has_cookie and page.by_cookie):
            return None
        known = self._hosts.get(host)
        if known is None:
            known = self._is_ours(host)
        return page if known else None

    def _is_ours(self, host: str) -> bool:
        domain, _ = split_domain_port(host)
        known = bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
        if settings.PREPEND_WWW and not host.startswith("www."):
            known = False
        if len(self._hosts) >= _HOSTS:
            self._hosts.clear()
        self._hosts[host] = known
        return known

    def absent(self, method: str, path: str, decide: Decide) -> Guard | Literal[False] | None:
        """The guard that knows for certain that ``path`` asks for what does not exist, or ``False``.

        ``None`` if ``decide`` could not tell at once.
        """
        for route in self._index.candidates(path):
            value = route.read(path)
            if value is NO_ID:
                continue
            decision = decide(route.guard, value)
            if decision is MAYBE:
                continue
            if decision is None:
                return None
            if decision.verdict is Verdict.ABSENT and method in route.methods and route.takes(path):
                return route.guard
        return False

    def failed(self, error: Exception) -> None:
        """Log an error of our own, once for each kind."""
        self._log.error(error, "bloomguard passes requests through the front door because of an error of its own")


def is_certain(route: GuardedRoute) -> bool:
    """Whether path and method alone say whether ``route`` may be answered."""
    return (
        route.is_early
        and route.is_plain
        and type(route.guard).applies is Guard.applies
        and not any(rival.by_language for rival in route.rivals)
    )


def front_door(application: Callable[..., Any]) -> FrontDoor | None:
    """The front door of ``application``, or ``None`` where it has to stay shut, which is logged with the reason.

    Raises :class:`ConfigurationError` if ``application`` is not Django's own.
    """
    if not isinstance(application, BaseHandler):
        raise ConfigurationError(
            f"shield() was given {application!r}; it takes what get_wsgi_application() or get_asgi_application() "
            "returns. Put other wrappers around shield()"
        )
    reason = next((reason for setting, reason in _SHUT.items() if getattr(settings, setting)), "")
    if not reason:
        try:
            door = FrontDoor(application)
            if door.is_open:
                return door
            reason = (
                "the site answers no plain 404" if door.methods else "no guarded route is certain by its path alone"
            )
        except Unfit as unfit:
            reason = str(unfit)
        except Exception:
            logger.exception("bloomguard's front door stays shut because of an error")
            return None
    logger.log(logging.INFO if settings.DEBUG else logging.WARNING, "bloomguard's front door stays shut: %s", reason)
    return None


_SHUT = {
    "DEBUG": "DEBUG is on, and its page tells more",
    "FORCE_SCRIPT_NAME": "FORCE_SCRIPT_NAME is set",
    "DISALLOWED_USER_AGENTS": "DISALLOWED_USER_AGENTS is set, and Django has to look",
}
