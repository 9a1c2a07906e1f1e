"""What the documentation of views shows does what it says."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import Http404
from django.test import RequestFactory
from django.utils import timezone
from gazetteer.models import City, Listing

PAGE = Path(__file__).parents[1] / "docs" / "views.md"


@pytest.fixture
def page(build, settings):
    """All that the page's blocks define, run in their order on two cities and two listings."""
    settings.ROOT_URLCONF = "config.urls"
    place = {"country": "DE", "timezone": "Europe/Berlin", "population": 1, "latitude": 0, "longitude": 0}
    munich = City.objects.create(pk=2867714, name="Munich", slug="munich", **place)
    City.objects.create(pk=2950159, name="Berlin", slug="berlin", **place)
    Listing.objects.create(city=munich, title="A room", slug="room")
    Listing.objects.create(city=munich, title="A bed", slug="withdrawn", deleted_at=timezone.now())
    for name in ("city", "city-by-slug", "listing"):
        build(name)
    text = PAGE.read_text()
    # Each block where it stands, so that a failure names the page's line.
    lines, inside = [], False
    for line in text.splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append("" if fence or not inside else line)
    namespace = {"__name__": "page", "City": City, "Listing": Listing}
    exec(compile("\n".join(lines), str(PAGE), "exec"), namespace)
    return namespace


def request(user=None, **cookies):
    made = RequestFactory().get("/")
    made.user = user or AnonymousUser()
    made.COOKIES.update(cookies)
    return made


def test_the_pages_views(page, django_assert_num_queries):
    """They show what there is, and answer 404 without a query where there is nothing."""
    views = [page["CityDetail"].as_view(), page["CityViewSet"].as_view({"get": "retrieve"})]

    for view in views:
        assert view(request(), pk=2867714).render().status_code == 200
        with django_assert_num_queries(0), suppress(Http404):  # an API makes its answer of it at once
            assert view(request(), pk=1).status_code == 404
    name = async_to_sync(page["CityName"].as_view())
    assert name(request(), pk=2950159).content == b"Berlin"
    assert name(request(), pk=1).status_code == 404


def test_staff_and_sessions_pass(page):
    """The recipes of ``applies``."""
    by_staff, by_session = page["StaffPasses"](City), page["WhoeverIsLoggedInPasses"](City)

    assert [by_staff.applies(request(user)) for user in (None, User(), User(is_staff=True))] == [True, True, False]
    assert [by_session.applies(each) for each in (request(), request(sessionid="x"))] == [True, False]


def test_staff_see_what_visitors_do_not(page, django_assert_num_queries):
    """One view for two audiences."""
    view, staff = page["ListingDetail"].as_view(), User(is_staff=True)

    assert view(request(staff), slug="withdrawn").status_code == 200
    with pytest.raises(Http404):
        view(request(), slug="withdrawn")
    with django_assert_num_queries(0), pytest.raises(Http404):
        view(request(), slug="none")


def test_every_block_of_the_page_is_python():
    """Nothing on the page escapes the run."""
    assert set(re.findall(r"^```(.+)$", PAGE.read_text(), flags=re.M)) == {"python"}
