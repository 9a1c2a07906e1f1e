"""What the door reads out of a path is what Django's resolver makes of it, step by step."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.urls import Resolver404, URLPattern, clear_url_caches, include, path, re_path, resolve
from django.urls.resolvers import RoutePattern
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bloomguard.door.paths import DoorRoute, Index, own_resolvers
from bloomguard.routes.patterns import overlapping, patterns, patterns_named
from bloomguard.routes.table import NO_ID, GuardedRoute
from tests.support.guarding import urlconf

UUID = "12345678-1234-1234-1234-1234567890ab"
#: Texts that each converter takes, and some that it does not.
VALUES = ["7", "07", "+7", "x", "-", "a-b", "-7", "7-a", "ab", UUID, UUID.upper(), "ü", "", "x/7", "7/7/"]
LITERALS = ["", "a", "7", "-", "/", "a/", "-a", "7/", "x7"]
CONVERTERS = ["int", "slug", "str", "path", "uuid"]
#: Expressions, each with a text that it matches.
REGEXES = {
    r"^(?P<{}>\d+)/": "7/", r"^(?P<{}>\w)-?": "a-", r"(?P<{}>[a-z]+)$": "7ab", r"^x(?P<{}>7)?": "x", r"^a+": "aa",
    r"^a{{0,1}}": "", r"^(a|7)": "7", r"a": "xa", r"^(?P<{}>.*)/": "x/7/", r"^(\d)": "7", r"^7-?$": "7", r"^$": "",
    r"^(?i:A)(?P<{}>-?)": "a",
}  # fmt: skip


def view():
    """A view of its own: it tells which pattern a path was taken to."""
    return lambda request, *args, **kwargs: None


@st.composite
def steps(draw, taken):
    """``path`` or ``re_path``, and what it matches; a name is captured once in a step."""
    if draw(st.integers(0, 3)) == 0:
        return re_path, draw(st.sampled_from([*REGEXES])).format(draw(st.sampled_from("pqr")))
    names = iter(draw(st.permutations("pqr")))
    route = draw(st.sampled_from(LITERALS))
    for name, _ in zip(names, range(draw(st.sampled_from([0, 1, 1, 1, 2])))):
        route += f"<{draw(st.sampled_from(CONVERTERS))}:{name}>" + draw(st.sampled_from(LITERALS))
    return path, route


@st.composite
def entries(draw, depth=0):
    """A URLconf's patterns: ``path()`` and ``re_path()``, one of three an ``include()``."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        make, route = draw(steps(depth))
        fixed = draw(st.sampled_from([{}, {}, {}, {"p": "fixed"}]))
        inner = depth < 2 and draw(st.integers(0, 2)) == 0
        found.append(make(route, include(draw(entries(depth + 1))) if inner else view(), fixed))
    return found


@st.composite
def likely_paths(draw, pattern):
    """Paths that ``pattern`` may take: its own texts, with a value in place of each converter."""
    found = "/"
    for step in pattern.steps:
        if isinstance(step, RoutePattern):
            found += re.sub("<[^>]*>", lambda part: draw(st.sampled_from(VALUES)), str(step))
        else:
            found += REGEXES[re.sub(r"<\w>", "<{}>", step.regex.pattern.replace("{0,1}", "{{0,1}}"))]
    return found


any_paths = st.lists(st.sampled_from([*VALUES, *LITERALS]), max_size=6).map(lambda parts: "/" + "".join(parts))


def routes_of(conf):
    """A route for each pattern, of all that its paths give."""
    known = list(patterns(conf))
    for pattern in known:
        names = tuple(dict.fromkeys(name for name in pattern.captured if name not in pattern.fixed))
        if names:
            yield DoorRoute(GuardedRoute(SimpleNamespace(), pattern, names, frozenset({"GET"})), known)


@settings(max_examples=400, deadline=None)
@given(entries(), st.data())
def test_what_is_confirmed_is_what_django_resolves(made, data):
    """Whatever the patterns and the path: the route's own callback, with the same kwargs, or nothing at all."""
    conf = urlconf(*made)
    try:
        routes = list(routes_of(conf))
        index = Index(routes)
        each = [any_paths, *(likely_paths(route.pattern) for route in routes for _ in range(3))]
        for one in map(data.draw, each):
            match = None
            with suppress(Resolver404):
                match = resolve(one, conf)
            for route in routes:
                expected = NO_ID
                if match is not None and match.func is route.pattern.callback:
                    values = tuple(match.kwargs.get(name, NO_ID) for name in route.kwargs)
                    expected = NO_ID if NO_ID in values else values[0] if len(values) == 1 else values
                assert route.captured(one) == expected, (one, route)
                if expected is not NO_ID:
                    event("a path of a route")
                    assert route in index.candidates(one)
                    assert route.read(one) == expected
    finally:
        clear_url_caches()


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ("<int:pk>", "8", 8),
        ("<int:pk>", "x", NO_ID),
        ("<int:pk>", "9" * 5000, NO_ID),
        ("<uuid:pk>", UUID, uuid.UUID(UUID)),
        ("<uuid:pk>", "no", NO_ID),
        ("<slug:pk>", "a/b", NO_ID),
        ("<str:pk>", "ü", "ü"),
        ("<path:pk>", "a/b", "a/b"),
    ],
)
def test_the_first_look(text, asked, expected):
    """The usual converters cost a slice; of others the pattern says what it captures."""
    [route] = routes_of(urlconf(path(f"x/{text}/", view())))

    assert route.read(f"/x/{asked}/") == expected
    assert route.read(f"/y/{asked}/") is NO_ID


def test_what_int_takes_and_the_converter_does_not():
    """The first look may read an ID where Django reads none; then nothing is confirmed."""
    [route] = routes_of(urlconf(path("x/<int:pk>/", view())))

    assert (route.read("/x/+8/"), route.captured("/x/+8/")) == (8, NO_ID)


def test_only_earlier_patterns_overlap():
    """Those that begin alike, or whose beginning nobody can tell; what comes later is asked only if they pass."""
    conf = urlconf(
        path("a/new/", view(), name="one"),
        path("b/<int:pk>/", view(), name="other"),
        re_path(r"(?P<any>.*)x/$", view(), name="any"),
        path("a/<str:pk>/", view(), name="mine"),
        path("a/<str:late>/", view(), name="late"),
    )
    known = list(patterns(conf))
    [mine] = patterns_named(known, "mine")

    assert [other.view_name for other in overlapping(known, mine)] == ["one", "any"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (path("a/<int:pk>/", view()), "/a/"),
        (path("a/", include([path("b/<int:pk>/", view())])), "/a/b/"),
        (re_path(r"^a/(?P<pk>\d+)/$", view()), "/a/"),
        (re_path(r"^a/b?(?P<pk>\d+)/$", view()), "/a/"),
        (re_path(r"a/(?P<pk>\d+)/$", view()), "/"),
        (re_path(r"^a|b(?P<pk>\d+)", view()), "/"),
        (re_path(r"^a/", include([re_path(r"^b/(?P<pk>\d+)", view())])), "/a/b/"),
    ],
)
def test_what_all_paths_begin_with(pattern, expected):
    """As far as the steps show it."""
    [found] = patterns(urlconf(pattern))

    assert found.literal == expected


class OwnStep(RoutePattern):
    """Matches as it likes."""


class OwnPattern(URLPattern):
    def resolve(self, path):
        return None


def test_what_is_not_djangos_own_is_seen():
    """A step or an entry of another class may look at anything; languages change what matches."""
    own_step = URLPattern(OwnStep("a/", is_endpoint=True), view())
    own_entry = OwnPattern(RoutePattern("b/", is_endpoint=True), view())
    conf = urlconf(path("in/", include([own_entry])), own_step, path("c/", view()), *i18n_patterns(path("d/", view())))

    assert [pattern.has_own_code for pattern in patterns(conf)] == [False, True, False, False]
    assert [pattern.by_language for pattern in patterns(conf)] == [False, False, False, True]
    assert list(own_resolvers(conf)) == [own_entry]
