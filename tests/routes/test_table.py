"""Routes: which guard guards a path, as Django itself would resolve it."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.test import Client
from django.urls import include, path, re_path, register_converter, resolve
from django.utils import translation
from django.utils.functional import lazystr
from django.views import View
from django.views.decorators.cache import never_cache

from bloomguard.guards import registry
from bloomguard.guards.runtime import GuardRuntime
from bloomguard.routes import table as tables
from bloomguard.routes.patterns import patterns
from bloomguard.routes.table import table_for
from bloomguard.signals import request_blocked
from bloomguard.state.verdicts import ABSENT, ERROR, MAYBE
from tests.shop.models import Article, Place, Product
from tests.support.guarding import registered, urlconf


def view(request, **kwargs):
    return HttpResponse(f"{sorted(kwargs.items())}")


class EvenConverter:
    """Numbers written in a group of their own, halved; odd ones are no match."""

    regex = "(?:[0-9])+([02468])"

    def to_python(self, value):
        return int(value) // 2

    def to_url(self, value):
        return str(value * 2)


class SameConverter:
    """What stood before under the name ``shop``: its expression refers to another one's group."""

    regex = "(?P=shop)"

    def to_python(self, value):
        return value

    def to_url(self, value):
        return value


class SignedConverter:
    regex = "-?[0-9]+"

    def to_python(self, value):
        if value == "-0":
            raise ValueError
        return int(value)

    def to_url(self, value):
        return str(value)


register_converter(EvenConverter, "even")
register_converter(SameConverter, "same")
register_converter(SignedConverter, "signed")


class Asked(list):
    """Decides like a filter of ``present`` values, and remembers what it was asked."""

    def __init__(self, *present):
        self.present = present

    def __call__(self, guard, value):
        self.append(value)
        return MAYBE if value in self.present else ABSENT


LOCALE = "django.middleware.locale.LocaleMiddleware"
GUARD = "bloomguard.middleware.BloomGuardMiddleware"
OTHER_URLCONF = f"{__name__}.other_urlconf"
asked_for: dict[str, object] = {}


def other_urlconf(get_response):
    """One URLconf for each host, as some projects have it."""

    def choose(request):
        for name, value in asked_for.items():
            setattr(request, name, value)
        return get_response(request)

    return choose


def answer(url, decide=None, *, method="GET", script_name="", **attributes):
    """The guard that answers a request, which goes the whole way through Django; ``None`` if the view is called."""
    answered = []

    def note(*, guard, **kwargs):
        answered.append(guard)

    decide = Asked() if decide is None else decide
    request_blocked.connect(note)
    asked_for.update(attributes)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GuardRuntime, "decide_in_full", lambda each, value, key=None: decide(each._guard, value))
            response = Client(raise_request_exception=False).generic(method, url, SCRIPT_NAME=script_name)
    finally:
        request_blocked.disconnect(note)
        asked_for.clear()
    assert (response.status_code == 404) >= bool(answered)
    return answered[0] if answered else None


@pytest.fixture(autouse=True)
def middleware(settings):
    settings.MIDDLEWARE = [OTHER_URLCONF, GUARD]


@pytest.fixture
def urls(settings):
    """``urls(*patterns)`` are the site's."""

    def use(*patterns, **attributes):
        settings.ROOT_URLCONF = urlconf(*patterns, **attributes)

    return use


@pytest.fixture
def item():
    """A guard of products by ``pk``, on the route ``item``."""
    with registered(Product, name="item", routes=["item"]) as guard:
        yield guard


@pytest.mark.parametrize(
    ("patterns", "url", "asked"),
    [
        ([path("i/<int:pk>/", view, name="item")], "/i/007/", 7),
        ([path("i/<str:pk>", view, name="item")], "/i/007", "007"),
        ([path("<int:pk>", view, name="item")], "/7", 7),
        ([path("i/<uuid:pk>/", view, name="item")], "/i/00000000-0000-0000-0000-000000000007/", None),
        ([path("i/<path:pk>/", view, name="item")], "/i/a/b/", "a/b"),
        ([path("i/<int:year>/<int:pk>/", view, name="item")], "/i/2024/7/", 7),
        ([re_path(r"^i/(?P<pk>[0-9]{1,4})/$", view, name="item")], "/i/12/", "12"),
        ([re_path(r"i/(?P<pk>\w+)", view, name="item")], "/i/x/and/more", "x"),
        ([re_path(r"^i/(?P<pk>a|b(c|d))$", view, name="item")], "/i/bd", "bd"),
        ([re_path(r"(?i)^I/(?P<pk>\w+)$", view, name="item")], "/i/x", "x"),
        ([path("i/<even:pk>/", view, name="item")], "/i/14/", 7),
        ([path("<slug:shop>/<same:pk>/", view, name="item")], "/ab/ab/", "ab"),
        ([path("i/<signed:pk>/", view, name="item")], "/i/-7/", -7),
        ([path("$i.+/<int:pk>/", view, name="item")], "/$i.+/7/", 7),
        ([path("$", include([path("<int:pk>", view, name="item")]))], "/$7", 7),
        ([path("a/", include([path("b/", include([path("<int:pk>", view, name="item")]))]))], "/a/b/7", 7),
        ([path("<int:shop>/", include([path("<int:pk>", view, name="item")]))], "/3/7", 7),
        ([path("", include([path("", include([path("<int:pk>", view, name="item")]))]))], "/7", 7),
        ([re_path(r"^a/(?P<pk>\d+)/", include([path("x", view, name="item")]))], "/a/7/x", "7"),
        ([path("i/<int:pk>/", view, {"pk": 9}, name="item")], "/i/7/", 9),
    ],
)
def test_a_route_gives_the_id_as_django_gives_it(item, urls, patterns, url, asked):
    """Whatever the pattern is made of, the guard is asked for what the view would get, and answers for it."""
    urls(*patterns)
    decide = Asked()

    assert answer(url, decide) is item
    assert asked is None or decide[-1] == asked
    assert resolve(url).kwargs["pk"] == decide[-1]


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        (path("i/<int:pk>/", view, name="item"), "/i/7"),
        (path("i/<int:pk>/", view, name="item"), "/i/7/%0A"),
        (path("i/<int:pk>/", view, name="item"), "/i/x/"),
        (path("i/<int:pk>/", view, name="item"), "/x/i/7/"),
        (path("i/<int:pk>/", view, name="item"), f"/i/{'9' * 5000}/"),
        (path("i/<str:pk>/", view, name="item"), "/i//"),
        (path("i/<even:pk>/", view, name="item"), "/i/13/"),
        (path("<slug:shop>/<same:pk>/", view, name="item"), "/ab/ba/"),
        (path("i/<signed:pk>/", view, name="item"), "/i/-0/"),
        (path("i.j/<int:pk>/", view, name="item"), "/ixj/7/"),
        (path("i/<int:pk>/", view, name="other"), "/i/7/"),
        (path("i/<int:number>/", view, name="item"), "/i/7/"),
        (path("ns/", include(([path("<int:pk>", view, name="item")], "ns"))), "/ns/7"),
    ],
)
def test_a_path_of_another_route_is_nobodys(item, urls, pattern, url):
    """A path that the pattern does not match, or a pattern that the guard does not name, passes unasked."""
    urls(pattern)
    decide = Asked()

    assert answer(url, decide) is None
    assert decide == []


@pytest.mark.parametrize("url", ["/i/", "/i/7/"])
def test_an_optional_group_that_is_left_out_is_no_id(item, urls, caplog, url):
    """A path without the optional ID passes in silence; with it, it is guarded."""
    urls(re_path(r"^i/(?:(?P<pk>[0-9]+)/)?$", view, name="item"))

    assert answer(url) is (item if "7" in url else None)
    assert [record for record in caplog.records if record.name == "bloomguard"] == []


def test_a_flood_of_one_error_is_one_line(item, urls, caplog):
    """An error of our own is said once for each kind, with its trace."""
    urls(path("i/<int:pk>/", view, name="item"))

    def fail(error):
        def decide(guard, value):
            raise error

        return decide

    for error in (RuntimeError("a"), RuntimeError("b"), OSError("c"), RuntimeError("d")):
        assert answer("/i/7/", fail(error)) is None
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError, OSError]


IN_B = [path("<int:pk>", view, name="item")], "b"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("api:item", path("v1/", include(([path("<int:pk>", view, name="item")], "api")))),
        ("v2:item", path("v1/", include(([path("<int:pk>", view, name="item")], "api"), namespace="v2"))),
        ("a:b:item", path("v1/", include(([path("", include(IN_B))], "a")))),
        ("item", path("v1/", include([path("<int:pk>", view, name="item")]))),
    ],
)
def test_a_route_is_named_with_its_namespaces(urls, name, pattern):
    """Routes are named as for ``reverse``: by instance namespaces, of all includes."""
    urls(pattern)

    with registered(Product, name="item", routes=[name]) as guard:
        assert answer("/v1/7") is guard


def test_every_pattern_of_a_name_is_guarded(item, urls):
    """A name that several patterns share guards them all."""
    urls(
        path("a/<int:pk>/", view, name="item"),
        path("b/<int:pk>/<slug:title>/", view, name="item"),
        re_path("^c/(?P<pk>[0-9]+)$", view, name="item"),
    )

    assert [answer(url, Asked(1)) for url in ("/a/2/", "/b/2/x/", "/c/2")] == [item] * 3
    assert [answer(url, Asked(1, "1")) for url in ("/a/1/", "/b/1/x/", "/c/1")] == [None] * 3


@pytest.mark.parametrize(
    "earlier",
    [
        path("i/0/", view),
        path("i/<int:number>/", view, name="other"),
        path("i/<int:pk>/", lambda request, pk: HttpResponse(), name="other"),
        path("i/<path:rest>", view),
        re_path("^i/", view),
        path("i/", include([path("<slug:slug>/", view)])),
    ],
)
def test_an_earlier_pattern_takes_the_path_for_itself(item, urls, earlier):
    """Where Django would call another view, the guard has nothing to say."""
    urls(earlier, path("i/<int:pk>/", view, name="item"))

    assert answer("/i/0/") is None


@pytest.mark.parametrize("text", ["+0", "-0", " 0", "0\n", "1_0", "٠"])
def test_what_only_python_takes_for_a_number_is_another_patterns(item, urls, text):
    """``int`` is more lenient than ``<int:>``: the path goes to the pattern that Django takes it to."""
    urls(path("i/<int:pk>/", view, name="item"), path("i/<str:name>/", view))

    assert answer(f"/i/{quote(text)}/") is None


def test_a_later_pattern_does_not_matter(item, urls):
    """Where Django takes the guarded pattern first, the guard answers."""
    urls(path("i/<int:pk>/", view, name="item"), path("i/<path:rest>", view))

    assert answer("/i/0/") is item


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (path("a/b/<int:pk>/", view), "/a/b/"),
        (path("a.b/<int:pk>", include([path("c", view)])), "/a.b/"),
        (path("a/", include([path("b", view)])), "/a/b"),
        (re_path(r"^a/b-c/(?P<pk>\d+)$", view), "/a/b-c/"),
        (re_path(r"^a/", include([re_path("^b/$", view)])), "/a/b/"),
        (re_path(r"^ab?", view), "/a"),
        (re_path(r"^ab*", view), "/a"),
        (re_path(r"^ab+", view), "/ab"),
        (re_path(r"^ab{0,2}", view), "/a"),
        (re_path(r"^a.b", view), "/a"),
        (re_path(r"^a\.b", view), "/a"),
        (re_path(r"^ab|c", view), "/"),
        (re_path(r"(?i)^ab", view), "/"),
        (re_path(r"ab", view), "/"),
        (i18n_patterns(path("a", view))[0], "/"),
        (path(lazystr("a/"), view), "/"),
    ],
)
def test_what_all_paths_begin_with(urls, pattern, literal):
    """The literal is never longer than what every path of the pattern has: a rival that is missed is a false 404."""
    urls(pattern)

    assert [found.literal for found in patterns()] == [literal]


def test_an_earlier_pattern_of_the_same_name_has_its_own_kwargs(item, urls):
    """The ID is taken from the match that Django makes, even where another pattern of the name matches too."""
    urls(path("<int:pk>/<int:other>/", view, name="item"), path("<int:other>/<int:pk>/", view, name="item"))

    assert answer("/1/2/", Asked(1)) is None
    assert answer("/1/2/", Asked(2)) is item


def test_two_guards_of_one_route_both_answer(urls, item):
    """A route may carry two IDs; either may be absent."""
    urls(path("<int:pk>/<slug:slug>/", view, name="item"))

    with registered(Article, name="page", lookup="slug", routes=["item"]) as page:
        assert answer("/1/a/", Asked(1, "a")) is None
        assert answer("/1/b/", Asked(1, "a")) is page
        assert answer("/2/a/", Asked(1, "a")) is item


def test_several_fields_are_asked_for_in_the_guards_order(urls):
    """The values of a composite come in the order of ``lookup``, whatever their order in the path."""
    urls(path("<slug:slug>/<str:code>/", view, name="spot"))
    decide = Asked()

    with registered(Place, name="spot", lookup=("country", "slug"), routes={"spot": {"country": "code"}}) as guard:
        assert answer("/ulm/DE/", decide) is guard

    assert decide[-1] == ("DE", "ulm")


def test_the_requests_own_urlconf_counts(item, urls):
    """``request.urlconf`` takes the place of ``ROOT_URLCONF``, as it does for Django."""
    urls(path("i/<int:pk>/", view, name="item"))
    other = urlconf(path("j/<int:pk>/", view, name="item"))
    without = urlconf(path("i/<int:pk>/", view, name="other"))

    assert answer("/j/7/", urlconf=other) is item
    assert answer("/i/7/", urlconf=other) is None
    assert answer("/i/7/", urlconf=without) is None
    assert answer("/i/7/", urlconf=None) is item


class Page(View):
    """Shows what the URLconf says; its ``get`` is the project's."""

    text = ""

    def get(self, request, pk):
        return HttpResponse(self.text)


def page(request, pk):
    return HttpResponse("another page")


@pytest.mark.parametrize(
    ("root", "other", "is_same", "public"),
    [
        (view, page, False, None),
        (view, page, False, True),
        (never_cache(view), view, True, None),
        (Page.as_view(), Page.as_view(), True, True),
        (Page.as_view(), Page.as_view(text="another"), False, True),
        (None, view, True, None),
    ],
)
def test_a_name_means_the_view_that_it_has_in_root_urlconf(urls, root, other, is_same, public):
    """Each host may have a view of that name. One that ``ROOT_URLCONF`` has not is known from the others alone."""
    urls(*([path("i/<int:pk>/", root, name="item")] if root else []))
    there = urlconf(path("j/<int:pk>/", other, name="item"), path("k/<int:pk>/", page, name="page"))

    with registered(Product, name="item", routes=["item"], public=public) as guard:
        assert answer("/j/7/", urlconf=there) is (guard if is_same else None)


def test_a_view_that_cannot_be_read_costs_only_its_own_route(item, urls, monkeypatch):
    """The others are guarded, and the table of routes is not made anew for each request."""
    urls(path("i/<int:pk>/", view, name="item"), path("j/<int:pk>/", page, name="page"))
    closed = tables.why_closed
    monkeypatch.setattr(tables, "why_closed", lambda guard, each: 1 / (each is not page) and closed(guard, each))

    with registered(Product, name="page", routes=["page"]):
        made = table_for()
        assert [answer("/i/7/"), answer("/j/7/")] == [item, None]
        assert table_for() is made


def test_another_root_urlconf_counts_at_once(item, settings):
    """``override_settings(ROOT_URLCONF=...)`` works."""
    settings.ROOT_URLCONF = urlconf(path("i/<int:pk>/", view, name="item"))
    first = answer("/i/7/"), answer("/j/7/")
    settings.ROOT_URLCONF = urlconf(path("j/<int:pk>/", view, name="item"))

    assert first == (item, None)
    assert (answer("/i/7/"), answer("/j/7/")) == (None, item)


def test_a_guard_that_comes_later_counts_at_once(urls):
    """A guard that is registered after the first request guards from then on."""
    urls(path("i/<int:pk>/", view, name="item"))
    before = answer("/i/7/")

    with registered(Product, name="item", routes=["item"]) as guard:
        assert (before, answer("/i/7/")) == (None, guard)
    assert answer("/i/7/") is None


def test_the_script_name_is_not_part_of_the_path(item, urls):
    """A site that is mounted below a prefix is guarded as at the root."""
    urls(path("i/<int:pk>/", view, name="item"))

    assert answer("/i/7/", script_name="/shop") is item


@pytest.mark.parametrize(
    ("methods", "guarded"),
    [(("GET", "HEAD"), ["GET", "HEAD"]), (("GET",), ["GET"]), (("GET", "DELETE"), ["GET", "DELETE"])],
)
def test_only_the_guards_methods_are_answered(urls, methods, guarded):
    """GET and HEAD by default; a guard may name others."""
    urls(path("i/<int:pk>/", view, name="item"))

    with registered(Product, name="item", routes=["item"], methods=methods) as guard:
        answers = [
            method
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
            if answer("/i/7/", method=method) is guard
        ]

    assert answers == guarded


def test_each_guard_has_its_own_methods(urls, item):
    """Another guard's methods open nothing."""
    urls(path("i/<int:pk>/", view, name="item"), path("a/<slug:slug>", view, name="page"))

    with registered(Article, name="page", lookup="slug", routes=["page"], methods=["DELETE"]):
        assert answer("/i/7/", method="DELETE") is None
        assert answer("/a/x", method="GET") is None


def test_applies_opts_out(urls):
    """A request that the guard does not mind passes; it is asked only where an answer is due."""
    urls(path("i/<int:pk>/", view, name="item"))
    asked = []

    def applies(self, request):
        asked.append(request.path)
        return "preview" not in request.GET

    with registered(Product, name="item", routes=["item"], applies=applies) as guard:
        assert answer("/i/7/?preview=1") is None
        assert answer("/i/7/") is guard
        assert answer("/i/8/", Asked(8)) is None

    assert set(asked) == {"/i/7/"}


@pytest.mark.parametrize("where", ["applies", "decide"])
def test_an_error_inside_passes_and_is_logged_once(urls, where, caplog):
    """Whatever goes wrong, the request goes on as if nothing were installed, and the log says so once."""

    def fail(*args):
        raise RuntimeError("oops")

    urls(path("i/<signed:pk>/", view, name="item"))
    attributes = {"applies": fail} if where == "applies" else {}
    decide = fail if where == "decide" else Asked()

    with registered(Product, name="item", routes=["item"], **attributes), caplog.at_level("INFO", "bloomguard"):
        assert answer("/i/7/", decide) is None

    assert [(record.name, record.levelno) for record in caplog.records] == [("bloomguard", logging.ERROR)]


def test_an_answer_that_is_not_certain_passes(item, urls):
    """MAYBE and UNKNOWN pass."""
    urls(path("i/<int:pk>/", view, name="item"))

    assert answer("/i/7/", lambda guard, value: MAYBE) is None
    assert answer("/i/7/", lambda guard, value: ERROR) is None


def test_a_guard_whose_route_is_missing_guards_nothing(urls):
    """A mistake in ``routes`` is the system checks' business; a request is not disturbed by it."""
    urls(path("i/<int:pk>/", view, name="item"))

    with registered(Product, name="item", routes=["item"]) as right, registered(Product, name="x", routes=["prodcut"]):
        assert answer("/i/7/") is right


def test_a_site_without_guarded_routes_has_an_empty_table(settings):
    """Where nothing is guarded, nothing is looked for."""
    settings.ROOT_URLCONF = urlconf(path("i/<int:pk>/", view, name="nobody's"))

    assert table_for().open == []
    assert answer("/i/7/") is None


# -- languages


@pytest.fixture
def languages(settings):
    settings.LANGUAGES = [("en", "English"), ("de", "Deutsch")]
    settings.MIDDLEWARE = [LOCALE, GUARD]
    with translation.override("en"):
        yield


def test_a_route_with_a_language_prefix_is_guarded(item, urls, languages):
    """A route of ``i18n_patterns`` is guarded in each language that the site has."""
    urls(*i18n_patterns(path("i/<int:pk>/", view, name="item")))

    assert answer("/en/i/7/") is item
    assert answer("/de/i/7/") is item
    assert answer("/fr/i/7/") is None
    assert answer("/en/i/8/", Asked(8)) is None


def test_a_pattern_of_another_language_may_take_the_path(item, urls, languages):
    """A route that takes any path does not answer for a page of a language."""
    urls(*i18n_patterns(path("other/", view)), path("<path:pk>", view, name="item"))

    assert answer("/de/other/") is None
    assert answer("/de/another/") is item


def test_a_translated_route_is_guarded_in_the_language_of_the_request(item, urls, languages):
    """A route whose text is translated is another one in each language."""
    urls(*i18n_patterns(path(lazystr("i/<int:pk>/"), view, name="item")))

    assert answer("/en/i/7/") is item


def test_the_shops_own_routes_all_guard():
    """Every route that the shop's guards name is in the table, and open: its views are plain functions."""
    found = {route.pattern.view_name: route.pattern.literal for route in table_for("tests.shop.urls").open}

    assert set(found) == {name for guard in registry for name in guard.routes if guard.model._meta.app_label == "shop"}
    assert found["product"] == "/products/"
    assert found["api:product"] == "/api/v1/products/"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_waits_for_no_thread_of_its_parent(fresh):
    """A thread of the parent looks through the URLs: in the child its lock is held, and nobody releases it."""
    registry.replan()
    lock = tables._building
    with ThreadPoolExecutor(1) as builder:
        builder.submit(lock.acquire).result()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                is_free = tables._building.acquire(blocking=False)
                code = 0 if is_free and table_for() is table_for() else 2
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        builder.submit(lock.release).result()

    assert os.waitstatus_to_exitcode(status) == 0
