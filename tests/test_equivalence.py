"""A site is the same with bloomguard and without: status and body of whatever is asked, by whatever method."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product

import pytest
from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.auth.models import Permission
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection, transaction
from django.db.models import Q
from django.test import Client
from django.urls.resolvers import LocalePrefixPattern
from django.utils.regex_helper import normalize
from gazetteer.models import City, Listing

from bloomguard.guards import Guard, registry
from bloomguard.routes.explain import explain
from bloomguard.routes.patterns import patterns
from bloomguard.verdicts import COLD
from tests.front import Wsgi
from tests.guarding import registered, urlconf
from tests.shop import features
from tests.shop.models import Article, Place, Product

GUARD = "bloomguard.middleware.BloomGuardMiddleware"
LOCALE = "django.middleware.locale.LocaleMiddleware"
SITES = f"{__name__}.sites"
#: As ``startproject`` has it but for the one that would refuse every POST ahead of its view.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
METHODS = ["GET"] * 12 + ["HEAD"] * 3 + ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
#: IDs that mean what they say to some converter and something else to another, and what no column holds.
ODD = ["0", "007", "+7", "-1", " 7", "7 ", "7.0", "1_0", "٧", "7٧", "0x7", "ff", "FF", "", "7/8", "ü", "%37", "None"]
ODD += [str(2**31), str(2**63 - 1), str(2**63), str(2**64), "9" * 40, "x" * 300, "ulm\n", "7\n", "'; --", "é", "é"]
LANGUAGES = ["en/", "de/", "de-at/", "fr/", "xx/", ""]

#: Another one each time.
TOKEN = re.compile(rb'(?<=name="csrfmiddlewaretoken" value=)"\w+"')


def sites(get_response):
    """One URLconf for each host, as some projects have it."""

    def choose(request):
        if request.headers.get("X-Site") == "shop":
            request.urlconf = "tests.shop.urls"
        return get_response(request)

    return choose


@dataclass(frozen=True)
class Asked:
    path: str
    method: str = "GET"
    mount: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Got:
    status: int
    body: bytes
    queries: tuple[str, ...]


def templates(root):
    """What the paths of every pattern look like: texts with ``%(kwarg)s`` in them."""
    for pattern in patterns(root):
        steps = []
        for step in pattern.steps[1:]:
            if isinstance(step, LocalePrefixPattern):
                steps.append(LANGUAGES)
            else:
                steps.append([text for text, _ in normalize(step.regex.pattern)])
        yield from ("/" + "".join(parts) for parts in product(*steps))


class Visitors:
    """Draws what is asked of the URLconfs ``roots``; ``cookies`` are those of users, ``headers`` what some send."""

    def __init__(self, roots, seed, cookies=(), headers=()):
        self.random = random.Random(seed)
        self.templates = [text for root in roots for text in templates(root)]
        self.cookies, self.headers = list(cookies), list(headers)
        self.slugs = ["ulm", "bonn", "gone", "ULM", "Ulm", "köln", "neu-ulm", "DE", "FR", "en"]

    def asked(self, count):
        """``count`` requests, the same ones for the same seed."""
        return [self._one() for _ in range(count)]

    def _one(self):
        draw = self.random.random
        path = re.sub(r"%\((\w+)\)s|%%", lambda found: self._value() if found[1] else "%", self._choice(self.templates))
        if draw() < 0.1:
            path = self._mangled(path)
        if draw() < 0.1:
            path += "?page=2"
        headers = {}
        if self.cookies and draw() < 0.4:
            headers["cookie"] = self._choice(self.cookies)
        if self.headers and draw() < 0.3:
            headers |= self._choice(self.headers)
        return Asked(path, self._choice(METHODS), "/mount" if draw() < 0.05 else "", headers)

    def _value(self):
        drawn = self.random.random()
        if drawn < 0.2:
            return self._choice(ODD)
        return self._choice(self.slugs) if drawn < 0.4 else str(self.random.randrange(1, 1200))

    def _mangled(self, path):
        at = self.random.randrange(len(path))
        return self._choice([
            "/" + path[1:at] + path[at + 1 :], path[:at] + path[at] + path[at:], path.rstrip("/"), path + "/",
            path.upper(), path + self._choice(ODD).replace("\n", ""),
        ]) or "/"  # fmt: skip

    def _choice(self, among):
        return among[self.random.randrange(len(among))]


class Site:
    """Answers as a site does, and undoes what it did: the next one finds the same rows."""

    def __init__(self, *, front_door=False):
        self.front = Wsgi()
        if not front_door:
            self.front.application = self.front.handler

    def __call__(self, asked):
        queries = []

        def note(execute, sql, *rest):
            queries.append(sql)
            return execute(sql, *rest)

        with suppress(Undo), connection.execute_wrapper(note), undone(asked.method):
            answer = self.front(asked.path, asked.method, mount=asked.mount, headers=asked.headers)
        body = b"" if asked.method == "HEAD" else answer.body  # a server drops it
        return Got(answer.status, TOKEN.sub(b"", body), tuple(queries))


class Undo(Exception):
    pass


@contextmanager
def undone(method):
    if method in ("GET", "HEAD"):
        yield
        return
    with transaction.atomic():
        yield
        raise Undo


@pytest.fixture
def quiet(monkeypatch):
    """Errors of the views' own are part of the comparison, and connections are kept."""
    logging.disable(logging.CRITICAL)
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
    logging.disable(logging.NOTSET)


def users():
    """The cookies of somebody, and of somebody who may see products."""
    made = [get_user_model().objects.create_user(name) for name in ("somebody", "viewer")]
    made[1].user_permissions.add(Permission.objects.get(codename="view_product"))
    for user in made:
        client = Client()
        client.force_login(user)
        assert client.session[SESSION_KEY] == str(user.pk)
        yield f"sessionid={client.cookies['sessionid'].value}"


def compare(asked, monkeypatch, roots, guarded):
    """Ask everything of the site as it is and of the ``guarded`` ones; returns how many absent rows cost no query.

    It is counted for each of ``guarded``. ``roots`` has the URLconf of each host.
    """
    bare = Site()
    guarded = {name: make() for name, make in guarded.items()}
    spared, statuses = Counter(), set()
    for start in range(0, len(asked), 1_000):
        part = asked[start : start + 1_000]
        with monkeypatch.context() as silent:
            # Views that are decorated are so on every site: here their guard has nothing to say.
            silent.setattr(Guard, "decide", lambda guard, value: COLD)
            expected = [bare(one) for one in part]
        statuses |= {got.status // 100 for got in expected}
        for name, site in guarded.items():
            got = [site(one) for one in part]
            different = [
                (one, want.status, have.status, want.body[:200], have.body[:200])
                for one, want, have in zip(part, expected, got)
                if (want.status, want.body) != (have.status, have.body)
            ]
            assert different == [], name
            for one, want, have in zip(part, expected, got):
                if want.status == 404 and want.queries and one.method in ("GET", "HEAD"):
                    spared[name] += not have.queries
                    assert name != "middleware" or not have.queries or is_due(one, have.queries, roots), one
    assert statuses >= {2, 3, 4}
    return spared


def is_due(asked, queries, roots):
    """Whether no guard could have spared these queries: nobody guards the path, or a filter may have its ID."""
    root = roots[asked.headers.get("x-site", "")]
    path = asked.path.partition("?")[0]
    for answer in explain(path, asked.method, root).guards:
        table = registry[answer.guard].model._meta.db_table
        if not answer.outcome.startswith("passes") and any(f'"{table}"' in sql for sql in queries):
            return False
    return True


def rows():
    """Half of the products from 1 to 1,000 with names that some views go by, articles, and a place."""
    Product.objects.bulk_create(Product(pk=pk, name="named" if pk % 3 else "hidden") for pk in range(1, 1000, 2))
    Article.objects.bulk_create([Article(slug="ulm"), Article(slug="köln"), Article(slug="gone", deleted=True)])
    Place.objects.create(country="DE", slug="ulm")


def gazetteer():
    """Half of the cities from 1 to 1,000, and listings that are there or were deleted."""
    common = {"timezone": "UTC", "population": 1, "latitude": 0.0, "longitude": 0.0, "country": "DE"}
    City.objects.bulk_create(
        City(geonameid=pk, name=f"City {pk}", slug="ulm" if pk == 7 else f"city-{pk}", **common)
        for pk in range(1, 1000, 2)
    )
    for slug, deleted in (("ulm", False), ("bonn", False), ("gone", True)):
        listing = Listing.objects.create(city_id=7, title=slug, slug=slug, body="text")
        if deleted:
            listing.soft_delete()


def with_the_guard(settings, place):
    """Makes the site with its middleware at ``place``."""

    def make():
        settings.MIDDLEWARE = [*settings.MIDDLEWARE[:place], GUARD, *settings.MIDDLEWARE[place:]]
        return Site()

    return make


def is_open():
    site = Site(front_door=True)
    assert site.front.is_open
    return site


LENGTHS = [pytest.param(1_000, id="short"), pytest.param(50_000, id="long", marks=pytest.mark.slow)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", LENGTHS)
def test_every_feature_of_a_urlconf(build, quiet, settings, monkeypatch, count):
    """Every kind of view and pattern, users with and without rights, languages, a URLconf a host, script names."""
    settings.MIDDLEWARE = MIDDLEWARE
    settings.ROOT_URLCONF = plain = urlconf(*features.urlpatterns)
    rows()
    with (
        registered(Product, name="auto", routes="auto"),
        registered(Article, name="auto-slug", lookup="slug", alive=Q(deleted=False), routes="auto"),
        registered(Product, name="named", routes=["function", "wrapped"]),
    ):
        for name in ("auto", "auto-slug", "named", "product", "article", "place"):
            build(name)
        cookies = list(users())
        asked = Visitors([plain], seed=1, cookies=cookies).asked(count // 2)
        spared = compare(
            asked,
            monkeypatch,
            {"": plain},
            {"front door": is_open, "middleware": with_the_guard(settings, 1)},
        )
        assert spared["middleware"] > count / 20
        assert spared["front door"] > count / 50

        settings.MIDDLEWARE = [*MIDDLEWARE[:2], LOCALE, SITES, *MIDDLEWARE[2:]]
        settings.ROOT_URLCONF = spoken = urlconf(*features.in_languages)
        visitors = Visitors([spoken, "tests.shop.urls"], 2, cookies, [{"x-site": "shop"}, {"accept-language": "de"}])
        spared = compare(
            visitors.asked(count // 2),
            monkeypatch,
            {"": spoken, "shop": "tests.shop.urls"},
            {"middleware": with_the_guard(settings, 4)},
        )
        assert spared["middleware"] > count / 40


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", LENGTHS)
def test_the_example_project(build, quiet, settings, monkeypatch, count):
    """The gazetteer with its admin, as it is and guarded."""
    settings.ROOT_URLCONF = "config.urls"
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != GUARD]
    gazetteer()
    for name in ("city", "city-by-slug", "listing"):
        build(name)
    asked = Visitors(["gazetteer.urls"] * 5 + ["config.urls"], seed=3, cookies=users()).asked(count)
    spared = compare(
        asked, monkeypatch, {"": "config.urls"}, {"front door": is_open, "middleware": with_the_guard(settings, 1)}
    )

    assert spared["middleware"] > count / 20
    assert spared["front door"] > count / 20
