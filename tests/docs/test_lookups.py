"""What the pages on lookups, routes and views show does what it says."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.http import Http404
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from gazetteer.models import City, Listing

from bloomguard.guards import registry
from bloomguard.lookups import context
from bloomguard.routes.openness import why_closed
from tests.support.guarding import make_guard, urlconf

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def cities(build, settings):
    """Two cities and two listings, guarded as in the example project; guards of the pages are gone afterwards."""
    settings.ROOT_URLCONF = "config.urls"
    place = {"country": "DE", "timezone": "Europe/Berlin", "population": 1, "latitude": 0, "longitude": 0}
    munich = City.objects.create(pk=2867714, name="Munich", slug="munich", **place)
    City.objects.create(pk=2950159, name="Berlin", slug="berlin", **place)
    Listing.objects.create(city=munich, title="A room", slug="room")
    Listing.objects.create(city=munich, title="A bed", slug="withdrawn", deleted_at=timezone.now())
    before = set(registry)
    for name in ("city", "city-by-slug", "listing"):
        build(name)
    yield
    for guard in set(registry) - before:
        registry.remove(guard)
    for guard in before - set(registry):
        registry.add(guard)


class Block:
    """``guarded_lookups()``, which counts the queries of each block that a page opens."""

    def __init__(self):
        self.queries = []

    def __call__(self):
        return self

    def __enter__(self):
        self._block = context.guarded_lookups()
        self._capture = CaptureQueriesContext(connection)
        self._block.__enter__()
        self._capture.__enter__()

    def __exit__(self, *error):
        self._capture.__exit__(*error)
        self._block.__exit__(*error)
        self.queries.append([query["sql"] for query in self._capture.captured_queries])


def run(page):
    """All that the page's blocks define, run in their order, each at its line so that a failure names it."""
    lines, inside = [], False
    path = DOCS / page
    for line in path.read_text().splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append("" if fence or not inside else line)
    namespace = {"__name__": "page", "City": City, "Listing": Listing}
    exec(compile("\n".join(lines), str(path), "exec"), namespace)
    return namespace


@pytest.fixture
def block(monkeypatch):
    """What the page on lookups imports as ``guarded_lookups``."""
    counting = Block()
    monkeypatch.setattr("bloomguard.lookups.guarded_lookups", counting)
    return counting


@pytest.fixture
def lookups(cities, block):
    """The page on lookups, run."""
    return run("lookups.md")


@pytest.fixture
def views(cities):
    """The page on views, run."""
    return run("views.md")


def request(user=None, method="get", **cookies):
    made = getattr(RequestFactory(), method)("/")
    made.user = user or AnonymousUser()
    made.COOKIES.update(cookies)
    return made


@pytest.mark.django_db(transaction=True)
def test_as_many_queries_are_sent_as_the_page_says(lookups, block):
    """In each of its blocks, in their order: answered, left alone, alive, a task."""
    sent = [len(queries) for queries in block.queries]

    assert sent == [0, 4, 1, 1]
    assert "NOT" in block.queries[2][0]  # the one of the deleted rows, in other words


@pytest.mark.django_db(transaction=True)
def test_staff_and_sessions_pass(lookups):
    """The recipes of ``applies``."""
    by_staff, by_session = lookups["StaffPasses"](City), lookups["LoggedInUsersPass"](City)

    assert [by_staff.applies(request(user)) for user in (None, User(), User(is_staff=True))] == [True, True, False]
    assert [by_session.applies(each) for each in (request(), request(sessionid="x"))] == [True, False]


@pytest.mark.django_db(transaction=True)
def test_rest_framework_answers_by_itself(lookups, settings, client, django_assert_num_queries, build):
    """GET asks the guard, and the 404 is in JSON; DELETE goes to the database; naming the route changes nothing."""
    settings.ROOT_URLCONF = urlconf(*lookups["urlpatterns"])
    settings.MIDDLEWARE = ["bloomguard.middleware.BloomGuardMiddleware"]

    assert client.get("/api/cities/2867714/").json()["name"] == "Munich"
    with django_assert_num_queries(0):
        missing = client.get("/api/cities/8/")
    assert (missing.status_code, missing["Content-Type"]) == (404, "application/json")
    with django_assert_num_queries(1):
        assert client.delete("/api/cities/8/").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_the_views_answer_without_a_query(views, client, settings, django_assert_num_queries):
    """They show what there is, and answer 404 where there is nothing; what stands above ``@guarded`` runs first."""
    name = async_to_sync(views["CityName"].as_view())

    assert views["city_name"](request(User()), pk=2867714).content == b"Munich"
    assert name(request(), pk=2950159).content == b"Berlin"
    with django_assert_num_queries(0):
        with pytest.raises(Http404):
            views["city_name"](request(User()), pk=1)
        with pytest.raises(Http404):
            name(request(), pk=1)
        assert views["city_name"](request(), pk=1).status_code == 302
    with pytest.raises(City.DoesNotExist):
        views["city_name"](request(User(), "post"), pk=1)


@pytest.mark.django_db(transaction=True)
def test_the_defaults_of_the_page_are_the_guards(lookups):
    """Each option, with what it is if a guard says nothing."""
    shown = re.findall(r"^\| `Guard\.(\w+)` \| `(.+?)` \|", (DOCS / "lookups.md").read_text(), re.MULTILINE)

    assert [name for name, _ in shown] == ["lookups", "methods"]
    assert {name: getattr(registry["city"], name) for name, _ in shown} == {name: eval(text) for name, text in shown}


@pytest.mark.parametrize("page", ["lookups.md", "views.md"])
def test_every_block_of_the_page_runs(page):
    """Nothing on the pages escapes the run, but the answer of a site in DEBUG."""
    kinds = set(re.findall(r"^```(.+)$", (DOCS / page).read_text(), flags=re.M))

    assert kinds <= {"python", "console"}
    assert (DOCS / page).read_text().count("```console") == (page == "lookups.md")


#: How each decorator that the page on routes calls harmless is written; those without an entry take the view alone.
ARGUMENTS = {
    "cache_page": (60,),
    "require_http_methods": (["GET"],),
    "vary_on_headers": ("Accept",),
    "cache_control": {"private": True},
    "sensitive_post_parameters": ("password",),
}
MODULES = ("cache", "clickjacking", "common", "csrf", "debug", "gzip", "http", "vary")


def view(request, pk):
    """A view of one row."""


def decorators(pattern):
    """Django's decorators of views whose names match; a star stands for any end."""
    for name in MODULES:
        module = import_module(f"django.views.decorators.{name}")
        found = [each for each in vars(module) if fnmatch(each, pattern) and callable(getattr(module, each))]
        yield from (getattr(module, each) for each in found)


def test_the_decorators_that_leave_a_view_open_are_those_of_the_page():
    """Every one that the page names; a login, a permission and one of the project's own close the view."""
    from django.contrib.admin.views.decorators import staff_member_required
    from django.contrib.auth.decorators import login_required, permission_required

    guard = make_guard(City)
    row = next(line for line in (DOCS / "routes.md").read_text().splitlines() if line.startswith("| a function, plain"))
    for pattern in re.findall(r"`([a-z_*]+)`", row):
        found = list(decorators(pattern))
        assert found, pattern
        for decorator in found:
            given = ARGUMENTS.get(decorator.__name__)
            made = decorator(**given) if isinstance(given, dict) else decorator(*given) if given else decorator
            assert why_closed(guard, made(view)) == "", pattern

    assert why_closed(guard, view) == ""
    for close in (login_required, permission_required("gazetteer.view_city"), staff_member_required):
        assert "decorator" in why_closed(guard, close(view))
