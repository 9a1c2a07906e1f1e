"""Sites with a stack of middleware, settings and views drawn at random answer with guards as they do without.

Each site is asked the same by one server without guards, and with guards at the lookup, the route and the door: status,
headers, cookies, bodies, sessions, log lines and what the middlewares saw have to be the same. What is behind the door
sees none of the requests that the door answers, so there only the answers count.
"""

from __future__ import annotations

import gzip
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.core import mail
from django.core.cache import cache
from django.db import connections
from django.db.models import Q
from django.middleware.gzip import GZipMiddleware
from django.test import override_settings
from django.urls import set_script_prefix
from django.utils import translation
from django.utils.module_loading import import_string

from bloomguard import middleware
from bloomguard.guards import Guard, registry
from bloomguard.lookups.context import LookupContext
from bloomguard.rebuild import Rebuild
from tests.shop.models import Article, Product
from tests.support.guarding import registered

from . import stack_middlewares as own
from .stack_server import Answer, Server
from .stack_sites import GUARD, SESSION, Request, Site

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]

#: Sites of a test.
SHORT, LONG, FIRST = 40, 3_000, 0
LENGTHS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.slow)]
MODES = ("lookup", "route", "door")


@pytest.fixture
def guards(fresh: None, hasty: None) -> Iterator[dict[str, Guard]]:
    """The rows that the sites show, some deleted since, and the guards, each with its filter."""
    pages = {1: "/v0/9/", 2: "/v1/9/", 3: "/v2/9/", 4: "", 5: ""}  # see `fallback`
    Product.objects.bulk_create(Product(pk=pk, name=name) for pk, name in pages.items())
    Article.objects.bulk_create(
        Article(slug=slug, deleted=slug == "hidden") for slug in ("one", "two", "hidden", "gone")
    )
    with ExitStack() as stack:
        given = {"methods": ["GET", "HEAD"]}
        found = {
            "product": stack.enter_context(registered(Product, name="drawn-product", lookup="pk", **given)),
            "article": stack.enter_context(
                registered(Article, name="drawn-article", lookup="slug", alive=Q(deleted=False), **given)
            ),
        }
        for guard in found.values():
            Rebuild(guard).run()
        Product.objects.filter(pk__in=[4, 5]).delete()
        Article.objects.filter(slug="gone").delete()
        yield found


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the guards have answered at the lookup and at the route, in any mode."""
    counted: Counter[str] = Counter()

    def counting(place: str, function: Any) -> Any:
        def called(*given: Any) -> Any:
            counted[place] += 1
            return function(*given)

        return called

    monkeypatch.setattr(middleware, "not_found", counting("route", middleware.not_found))
    monkeypatch.setattr(LookupContext, "note_avoided", counting("lookup", LookupContext.note_avoided))
    return counted


@pytest.fixture
def nothing_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs have the same tokens, and no mail has a date. Session keys are counted, see :func:`run`."""
    monkeypatch.setattr("django.middleware.common.mail_managers", lambda *given, **how: mail.outbox.append(given))
    monkeypatch.setattr("django.middleware.csrf.get_random_string", lambda length, allowed_chars="": "t" * length)
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    monkeypatch.setattr(GZipMiddleware, "max_random_bytes", 0)


class Lines(logging.Handler):
    """Django's log lines are seen too."""

    def emit(self, record: logging.LogRecord) -> None:
        own.log.append(("line", record.levelname, record.getMessage()))


# -- one run of one site


def run(site: Site, mode: str, user: Any) -> tuple[list[Answer], int, bool]:
    """The answers of the site, the number of sessions at the end, and whether the door was open."""
    stack = [name for name in site.middleware if mode or name != GUARD]
    given = {**site.settings, "MIDDLEWARE": stack, "ROOT_URLCONF": site.urls}
    numbers = iter(range(1_000_000))
    logger = logging.getLogger("django")
    lines, propagates = Lines(), logger.propagate
    with override_settings(**given), pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", site.is_atomic)
        patch.setattr(
            "django.contrib.sessions.backends.base.get_random_string",
            lambda length, allowed_chars="": f"{next(numbers):032}",
        )
        set_script_prefix("/")
        translation.deactivate()
        server = Server(site.is_async, mode == "door")
        prepare(user)
        numbers = iter(range(1_000_000))
        own.forget()
        logger.addHandler(lines)
        logger.propagate = False
        try:
            found = server.ask(site.requests)
        finally:
            logger.removeHandler(lines)
            logger.propagate = propagates
        return found, Session.objects.count(), server.is_open


def prepare(user: Any) -> None:
    """Nothing is cached, and one visitor has a session."""
    cache.clear()
    mail.outbox.clear()
    Session.objects.all().delete()
    store = import_string(f"{settings.SESSION_ENGINE}.SessionStore")()
    store.update(
        {
            "basket": 1,
            SESSION_KEY: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
    )
    store._session_key = SESSION
    if not settings.SESSION_ENGINE.endswith("cookies"):
        store.save(must_create=True)


_NONCE = re.compile(r"'nonce-([^']+)'")
_IN_BODY = re.compile(rb"(?<=nonce=)[\w-]+")
_EXPIRES = re.compile(r"(?<=expires=)[^;]+")


def shown(answer: Answer, method: str) -> tuple[int, dict[str, list[str]], bytes]:
    """The answer without what differs from one request to the next."""
    headers: dict[str, list[str]] = {}
    nonces = [nonce for name, value in answer.headers for nonce in _NONCE.findall(value)]
    for name, value in answer.headers:
        value = _EXPIRES.sub("...", value)
        for nonce in nonces:
            value = value.replace(nonce, "...")
        headers.setdefault(name, []).append(value)
    body = answer.body
    if headers.get("Content-Encoding") == ["gzip"] and body:
        body = gzip.decompress(body)
        if nonces:
            headers.pop("Content-Length", None)
    if nonces or _IN_BODY.search(body):
        body = _IN_BODY.sub(b"...", body)  # one from a cache, or of a page that streams, is not in the header
        headers.pop("ETag", None)
    return answer.status, headers, b"" if method == "HEAD" else body


def difference(site: Site, request: Request, one: Answer, other: Answer) -> str:
    """What differs; a 404 may have ``Cache-Control: no-store``."""
    mine, theirs = shown(one, request.method), shown(other, request.method)
    if theirs[0] in (404, 410) and theirs[1].get("Cache-Control") == ["no-store"]:
        # Middleware around it that adds one finds it there already.
        adds = any("may_be_cached" in name for name in site.middleware)
        if "Cache-Control" not in mine[1] or adds:
            for headers in (mine[1], theirs[1]):
                headers.pop("Cache-Control", None)
    if theirs[0] == 404 and site.has_late_etags:
        for headers in (mine[1], theirs[1]):
            headers.pop("ETag", None)
    if mine != theirs:
        return f"{one}\nbecame\n{other}"
    if not other.at_the_door and one.seen != other.seen:
        return f"it answers the same, but {one.seen}\nbecame\n{other.seen}"
    return ""


@pytest.mark.parametrize("sites", LENGTHS)
def test_a_site_answers_as_without_guards(guards, places, nothing_random, tmp_path, sites):
    """Whichever middleware stands around the guards, and whatever the settings say."""
    blocked: Counter[str] = Counter()
    (tmp_path / "x.css").write_text("p {}")
    user = get_user_model().objects.create_user("reader", password=None)
    odd: list[str] = []
    for seed in range(FIRST, FIRST + sites):
        site = Site(seed, str(tmp_path))
        expected, sessions, _ = copy_context().run(run, site, "", user)
        for mode in MODES:
            for name, guard in guards.items():
                guard.methods = site.methods
                guard.routes = () if mode == "lookup" else "auto" if site.is_auto else site.routes[name]
            registry.changed()
            before = places[mode]
            found, others, is_open = copy_context().run(run, site, mode, user)
            if is_open and not site.is_for_a_door:
                continue
            blocked[mode] += places[mode] - before if mode != "door" else sum(each.at_the_door for each in found)
            differing = [
                f"{request}: {text}"
                for request, one, other in zip(site.requests, expected, found, strict=True)
                if (text := difference(site, request, one, other))
            ]
            if others != sessions and not is_open:  # a middleware may drop the cookie of one that it has made
                differing.append(f"{sessions} sessions became {others}")
            if differing:
                odd.append(f"seed {seed}, {mode}: {differing[0]}\n{site}")

    assert not odd, f"{len(odd)} differences\n\n" + "\n\n".join(odd[:5])
    assert min(blocked[mode] for mode in MODES) > sites / 4
