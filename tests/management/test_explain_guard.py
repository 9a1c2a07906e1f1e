"""``manage.py explain_guard``, and the header that says the same while ``DEBUG`` is on."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.http import Http404
from django.test import AsyncClient, Client
from django.urls import URLPattern, path, re_path

from bloomguard.guards import registry
from bloomguard.guards.counters import counts
from bloomguard.stores import stores
from bloomguard.stores.memory import MemoryStore  # noqa: F401  (named in a setting)
from tests.shop import features, views
from tests.shop.models import Article, Place, Product
from tests.support.guarding import registered, urlconf

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


@pytest.fixture(autouse=True)
def _in_its_place(settings):
    settings.MIDDLEWARE = [GUARD]


def told(capsys, *arguments):
    call_command("explain_guard", *arguments)
    return capsys.readouterr().out


def explained(capsys, *arguments):
    return json.loads(told(capsys, "--json", *arguments))


@pytest.mark.parametrize(
    ("url", "method", "verdict", "reason", "outcome"),
    [
        ("/products/7/", "GET", "maybe", "maybe", "passes"),
        ("/products/8/", "GET", "absent", "absent", "404 at the route, or at the door"),
        ("/products-str/x/", "GET", "unknown", "unkeyable", "passes"),
        (
            f"/products/{10**30}/",
            "GET",
            "absent",
            "out of range",
            "404 at the route, or at the door",
        ),
        ("/products/8/", "POST", "absent", "absent", "passes: the guard answers only GET, HEAD"),
        (
            "/decorated/8/",
            "GET",
            "absent",
            "absent",
            "404 at the route (by @guarded, at its place among the view's decorators)",
        ),
    ],
)
def test_a_path_is_explained(shop, capsys, url, method, verdict, reason, outcome):
    """Which guard, what it says and why, and what becomes of the request."""
    [answer] = explained(capsys, url, "--method", method.lower())["guards"]

    assert (answer["guard"], answer["verdict"], answer["reason"]) == ("product", verdict, reason)
    assert answer["outcome"].startswith(outcome)


def test_a_program_gives_the_method_as_the_command_line_does(shop, capsys):
    """A keyword argument of ``call_command`` is converted as an option is."""
    call_command("explain_guard", "/products/8/", method="get")

    out = capsys.readouterr().out
    assert "request     GET /products/8/\n" in out
    assert "outcome     404 at the route" in out


@pytest.mark.parametrize(
    ("middleware", "url", "outcome"),
    [
        ([], "/products/8/", "404 at the door if the site has one (MIDDLEWARE has no BloomGuardMiddleware)"),
        ([], "/p/8/", "passes (MIDDLEWARE has no BloomGuardMiddleware)"),
        ([], "/decorated/8/", "404 at the route (by @guarded, at its place among the view's decorators)"),
        (
            [GUARD, "django.middleware.common.CommonMiddleware"],
            "/products/8/",
            "404 at the lookup, or at the door if the site has one "
            "(not before the view: other middleware comes after BloomGuardMiddleware)",
        ),
        (
            [GUARD, "django.middleware.common.CommonMiddleware"],
            "/own-object/8/",
            "404 at the lookup (its view's own query)",
        ),
    ],
)
def test_the_place_of_the_middleware_counts(shop, capsys, settings, middleware, url, outcome):
    """What the middleware does not see, or must not answer yet, is not said to be answered there."""
    settings.MIDDLEWARE = middleware
    conf = [] if url in ("/products/8/", "/decorated/8/") else ["--urlconf", "tests.shop.features"]
    [answer] = [each for each in explained(capsys, url, *conf)["guards"] if each["guard"] == "product"]

    assert answer["outcome"] == outcome


def test_a_guard_without_methods_answers_none(shop, capsys, monkeypatch):
    """An impossible value of ``methods`` becomes none, and the outcome says so."""
    with monkeypatch.context() as patch:
        patch.setattr(registry["product"], "methods", ())
        registry.changed()

        [answer] = explained(capsys, "/products/8/")["guards"]
    registry.changed()

    assert answer["outcome"] == "passes: the guard answers no method"


def test_the_key_and_what_it_was_held_against_are_shown(shop, capsys):
    """Key, generation, state row, store, lease and timings are those that the verdict came from."""
    found = explained(capsys, "https://testserver/products/8/?page=2")
    [answer] = found["guards"]
    state = registry["product"]._runtime.active_filter.table.current("product")

    assert (found["path"], found["pattern"], found["name"]) == ("/products/8/", "/products/<int:pk>/", "product")
    assert bytes.fromhex(answer["key"]) == registry["product"]._meta.keys.key(8)
    assert answer["value"] == "8"
    assert answer["generation"]["name"] == answer["state"]["active"] == state.active
    assert answer["state"]["version"] == state.version
    assert answer["state"]["status"] == "armed"
    assert answer["identity"] == registry["product"]._runtime.active_filter.store.identity == state.identity
    assert answer["backend"] == "bloomguard.stores.file.FileStore"
    assert 0 < answer["lease_seconds"] <= 1
    assert answer["first_us"] > 0 < answer["again_us"]
    assert answer["fault"] == ""


def test_the_backend_is_shown_as_the_settings_name_it(shop, capsys, settings):
    """A store may be defined in another module than the one that the project names."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": f"{__name__}.MemoryStore"}}}
    [answer] = explained(capsys, "/products/8/")["guards"]

    assert answer["backend"] == f"{__name__}.MemoryStore"


def test_it_changes_nothing(shop, capsys, django_assert_num_queries):
    """The row is none other afterwards, the guarded table is not asked, and the figures do not count it."""
    table = registry["product"]._runtime.active_filter.table
    before, counted = table.current("product"), counts.read()
    with django_assert_num_queries(1) as queries:  # the state row
        told(capsys, "/products/8/")

    assert "bloomguard_guardstate" in queries.captured_queries[0]["sql"]
    assert table.current("product") == before
    assert counts.read() == counted


def test_a_guard_of_several_fields(build, capsys, settings):
    """The values come from the kwargs that the guard takes them from."""
    Place.objects.create(country="DE", slug="ulm")
    build("place")

    [there], [gone] = (explained(capsys, f"/places/{code}/ulm/")["guards"] for code in ("DE", "FR"))
    assert (there["value"], there["verdict"], gone["verdict"]) == ("('DE', 'ulm')", "maybe", "absent")
    assert there["lookup"] == "country, slug"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/nothing/", "no URL pattern matches this path"),
        (
            "/products/8",
            "no URL pattern matches this path; one matches /products/8/, with a slash at the end: explain that",
        ),
        ("/products/0/", "the pattern captures nothing from the path"),  # a pattern before the guarded one takes it
    ],
)
def test_a_path_that_nobody_guards(shop, capsys, url, why):
    """It is said why no guard is asked."""
    assert explained(capsys, url)["unguarded"] == why
    assert f"guard       none: {why}" in told(capsys, url)


def test_a_view_that_nobody_names_is_told_of(shop, capsys):
    """It is answered at its own query, as ``guard_routes`` says."""
    [answer] = explained(capsys, "/own-object/8/", "--urlconf", "tests.shop.features")["guards"]

    assert (answer["guard"], answer["outcome"]) == ("product", "404 at the lookup (its view's own query)")


@pytest.mark.parametrize(
    ("attributes", "outcome"),
    [({}, "404 at the lookup (not before the view: Decorated.dispatch runs first)"),
     ({"lookups": False}, "passes (not before the view: Decorated.dispatch runs first)")],
)  # fmt: skip
def test_a_route_that_is_closed_says_what_is_in_the_way(build, capsys, attributes, outcome):
    """A named route whose view demands something of the user is answered at its lookup, if the guard does that."""
    with registered(Product, name="named", routes=["decorated"], **attributes):
        build("named")
        found = explained(capsys, "/decorated/8/", "--urlconf", "tests.shop.features")

    assert [answer["outcome"] for answer in found["guards"] if answer["guard"] == "named"] == [outcome]


def test_a_path_in_a_language(build, capsys, settings):
    """The language is the path's own, as ``LocaleMiddleware`` would find it."""
    settings.ROOT_URLCONF = urlconf(*features.in_languages)
    with registered(Product, name="auto", routes="auto"):
        build("auto")
        found = explained(capsys, "/de/p/8/")

    assert [answer["verdict"] for answer in found["guards"] if answer["guard"] == "auto"] == ["absent"]


def test_before_the_first_build(fresh, transactional_db, capsys):
    """A cold guard is said to be, with the cure."""
    said = told(capsys, "/products/8/")

    assert "verdict     unknown (cold): there is no filter yet; run rebuild_filter" in said
    assert "fault       there is no state row" in said


def test_a_filter_that_is_in_another_store_is_not_said_to_be_missing(shop, capsys, clock):
    """A process that has found no filter reads no state row for a verdict; an explanation does."""
    stores["default"].path.rename(stores["default"].path.with_name("former"))
    registry["product"]._runtime.active_filter.table.forget()
    registry["product"]._runtime.active_filter.forget()
    [answer] = explained(capsys, "/products/8/")["guards"]

    assert (answer["verdict"], answer["reason"]) == ("unknown", "identity")


def test_shadow_mode_passes(build, capsys):
    """What would have been answered is told, and that it is not."""
    with registered(Product, name="watched", mode="shadow", routes=["product"]):
        build("watched")
        told_of = [explained(capsys, url)["guards"][-1] for url in ("/products/8/", f"/products/{10**30}/")]

    assert [(one["guard"], one["verdict"], one["reason"], one["outcome"]) for one in told_of] == [
        ("watched", "unknown", "shadow", "passes")
    ] * 2


def test_an_error_is_shown(shop, capsys):
    """A guard whose own code fails passes requests, and the operator sees why."""

    def normalize(self, value):
        raise RuntimeError("a mistake in normalize")

    with registered(Article, name="broken", lookup="slug", routes=["article"], normalize=normalize):
        found = explained(capsys, "/articles/ulm/")

    [broken] = [answer for answer in found["guards"] if answer["guard"] == "broken"]
    assert (broken["verdict"], broken["reason"]) == ("unknown", "unkeyable")
    assert broken["fault"].startswith("normalize() raised RuntimeError for a value of ")


def test_a_fenced_guard_says_why(shop, capsys):
    """The reason of the fence stands in the state row."""
    table = registry["product"]._runtime.active_filter.table
    table.fence("product", "a write of a test")
    table.forget()
    said = told(capsys, "/products/8/")

    assert (
        "verdict     unknown (fenced): the guard is disabled, often after an unconfirmed add; run rebuild_filter"
        in said
    )
    assert f"fenced since {table.row('product').fenced_at}: a write of a test" in said


def test_it_reads_well(shop, capsys):
    """One thing a line, what it is at its beginning."""
    titles = [line[:11].strip() for line in told(capsys, "/products/8/").splitlines() if line[:11].strip()]

    assert titles == [
        "request", "route", "guard", "key", "verdict", "outcome", "store", "generation", "state row", "lease", "timings"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["products/8/"], r"'products/8/' is not a path: it must begin with a slash"),
        (["https://[::1/products/8/"], r"'https://\[::1/products/8/' is not a URL: Invalid IPv6 URL"),
        (["/products/8/", "--urlconf", ""], "'' is not the name of a module"),
        (["/products/8/", "--urlconf", ".urls"], r"'\.urls' is not the name of a module"),
        (["/products/8/", "--urlconf", "no.such"], r"there is no URLconf 'no\.such'"),
        (["/products/8/", "--urlconf", "tests.shop.models"], r"there is no URLconf 'tests\.shop\.models'"),
    ],
)
def test_a_mistake_is_named(shop, arguments, why):
    """With the value and the cure."""
    with pytest.raises(CommandError, match=why):
        call_command("explain_guard", *arguments)


def test_two_slashes_are_a_path_of_their_own(shop, capsys):
    """Django takes them as they are; no host stands between them."""
    assert "request     GET //products/8/" in told(capsys, "//products/8/?page=2")


def test_a_decorator_with_a_guard_that_there_is_not(shop, settings, capsys):
    """It guards nothing; a guard of the view's own query does."""
    from bloomguard.decorators import guarded

    view = guarded("nobody")(lambda request, **kwargs: None)
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", view), path("y/<int:number>/", view))

    found = {guard["guard"] for guard in explained(capsys, "/x/8/")["guards"]}
    assert "product" in found
    assert "nobody" not in found
    nobody = explained(capsys, "/y/8/")
    assert nobody["guards"] == []
    assert nobody["unguarded"] == "no guard has the name 'nobody' of its @guarded"


def headers(client, *urls):
    get = client().get if client is Client else async_to_sync(client().get)
    return [get(url).headers.get("X-Bloomguard") for url in urls]


@pytest.mark.parametrize("client", [Client, AsyncClient], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("middleware", [["bloomguard.middleware.BloomGuardMiddleware"], []], ids=["middleware", "none"])
def test_in_debug_a_header_says_the_verdict(shop, settings, client, middleware):
    """What the request's guards said, whoever answers; nothing where no guard was asked, or without the middleware."""
    settings.DEBUG, settings.MIDDLEWARE = True, middleware
    early = ["product: maybe", "product: absent", "product: absent (out of range)", "product: unknown (unkeyable)"]
    urls = ["/products/7/", "/products/8/", f"/products/{10**30}/", "/products-str/x/"]

    assert headers(client, *urls) == (early if middleware else [None] * 4)
    for view in ("decorated", "decorated-async"):
        assert headers(client, f"/{view}/7/", f"/{view}/8/") == (early[:2] if middleware else [None] * 2)
    assert headers(client, "/nothing/") == [None]


@pytest.mark.parametrize("client", [Client, AsyncClient], ids=["wsgi", "asgi"])
def test_in_debug_a_lookup_tells_too(build, settings, client):
    """A route that is answered at its view's query has the header as well."""
    settings.DEBUG, settings.MIDDLEWARE = True, ["bloomguard.middleware.BloomGuardMiddleware"]
    settings.ROOT_URLCONF = "tests.shop.features"
    Product.objects.create(pk=7)
    with registered(Product, name="auto", routes="auto"):
        build("auto")

        assert headers(client, "/own-queryset/7/", "/own-queryset/8/") == [
            "product: unknown (cold), auto: maybe",
            "product: unknown (cold), auto: absent",
        ]


@pytest.mark.parametrize("client", [Client, AsyncClient], ids=["wsgi", "asgi"])
def test_in_debug_a_404_names_no_guard_of_another_request(shop, settings, client):
    """It has the other headers of the 404s of its view in which a guard was asked."""

    def view(request, pk):
        if "early" in request.GET:
            raise Http404
        return views.product(request, pk)

    settings.DEBUG, settings.MIDDLEWARE = True, ["bloomguard.middleware.BloomGuardMiddleware"]
    settings.ROOT_URLCONF = urlconf(path("x/<int:pk>/", view))
    assert headers(client, "/x/8/", "/x/8/?early", "/x/7/?early") == ["product: absent", None, None]


def test_without_debug_nobody_is_told(shop, settings):
    """Strangers learn nothing of the guards."""
    settings.MIDDLEWARE = ["bloomguard.middleware.BloomGuardMiddleware"]

    assert headers(Client, "/products/7/", "/products/8/", "/decorated/7/", "/decorated/8/") == [None] * 4


class OwnPattern(URLPattern):
    """Finds its view itself, and gives another one than it has."""

    def resolve(self, path):
        match = super().resolve(path)
        if match is not None:
            match.func = lambda request, **kwargs: None
        return match


def test_a_path_without_the_id_has_no_key(build, capsys, settings):
    """An optional group may leave it out; the middleware asks nothing then."""
    settings.ROOT_URLCONF = urlconf(re_path(r"^a/(?:(?P<slug>\w+)/)?$", views.article, name="article"))
    build("article")

    found = explained(capsys, "/a/")["guards"][0]

    assert (found["value"], found["key"], found["verdict"], found["reason"]) == ("", "", "unknown", "unkeyable")


def test_a_pattern_that_finds_its_view_itself_is_named(shop, settings, capsys):
    """Whose route it is cannot be told."""
    settings.ROOT_URLCONF = urlconf(OwnPattern(path("own/<int:pk>/", views.product).pattern, views.product))

    assert "its URL pattern finds paths and views in its own way" in told(capsys, "/own/8/")
