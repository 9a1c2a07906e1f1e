"""The shortcut of a normal request: it lets pass what the longer way lets pass, and says nothing else."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.http import Http404
from django.test import RequestFactory

import bloomguard.routing.shortcut
from bloomguard import hearing
from bloomguard.counting.counts import MICROSECONDS, TIMED, counts
from bloomguard.guards import Guard, guards
from bloomguard.routes import absent, table_for
from bloomguard.routing.reading import Between
from bloomguard.routing.shortcut import shortcut
from bloomguard.testing import guards_armed, guards_off
from bloomguard.verdicts import MAYBE, REMEMBERED
from tests.conftest import forget
from tests.servers import valkey
from tests.shop.models import Article, Product

PATHS = [
    *("/products/1/", "/products/001/", "/products/+1/", "/products/1_0/", "/products/١/", "/products/10/"),
    *("/products/0/", "/products/2/", "/products/-1/", f"/products/{1 << 63}/", f"/products/{1 << 64}/"),
    *("/products/", "/products//", "/products/1", "/products/x/", "/products/1/2/", f"/products/{'9' * 5_000}/"),
    *("/api/v1/products/1/", "/api/v1/products/2/", "/articles/one/", "/articles/two/", "/elsewhere/1/"),
]


@pytest.fixture
def shop(build):
    """Products with odd IDs, one article, and their filters, of which this process has heard."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 20, 2))
    Article.objects.create(slug="one")
    for name, value in (("product", 1), ("article", "one")):
        build(name)
        assert guards[name].decide(value) is MAYBE


def route_of(path):
    (route,) = table_for(settings.ROOT_URLCONF).candidates(path)
    return route


def shortcut_of(path):
    return route_of(path).lets_pass


def asked(path, *, quickly):
    """What becomes of a request: the answer, the route that said MAYBE, and what was counted."""
    counts.forget()
    request = RequestFactory().get("/")
    request.path_info = path
    answer = absent(request, Guard.decide, quickly=quickly)
    counted = {name: number for name, number in counts.read().items() if name[1] not in (TIMED, MICROSECONDS)}
    return answer, getattr(request, "bloomguard_maybe", None), counted  # which of them are timed is a matter of chance


@pytest.mark.usefixtures("shop")
def test_it_comes_to_what_the_longer_way_comes_to():
    """The answer, what is remembered of the request, and what is counted are the same."""
    differing = [path for path in PATHS if asked(path, quickly=True) != asked(path, quickly=False)]

    assert differing == []
    assert asked("/products/1/", quickly=True)[1:] == (route_of("/products/1/"), {("product", "maybe"): 1})


@pytest.mark.usefixtures("shop")
def test_it_is_for_integers_that_may_exist():
    """All else takes the longer way."""
    lets_pass = shortcut_of("/products/1/")

    assert all(lets_pass(f"/products/{text}/") for text in ("1", "7"))
    assert not any(lets_pass(f"/products/{text}/") for text in ("2", "-1", "x", "", 1 << 64))
    assert shortcut_of("/articles/one/") is None


@pytest.mark.usefixtures("shop")
def test_one_in_so_many_is_timed(monkeypatch):
    """As on the longer way."""
    monkeypatch.setattr(bloomguard.routing.shortcut, "EVERY", 1)
    route = route_of("/products/1/")
    lets_pass = shortcut(route.guard, Between.texts(route.pattern, route.kwargs))
    counts.forget()

    assert lets_pass("/products/1/")
    assert counts.read()["product", TIMED] == 1


@pytest.mark.usefixtures("shop")
def test_whoever_listens_hears_of_every_verdict():
    """The shortcut tells nobody, so it is not taken."""
    heard = []
    hearing.listeners.append(lambda guard, value, decision: heard.append((value, decision)))
    try:
        asked("/products/1/", quickly=True)
    finally:
        hearing.listeners.pop()

    assert heard == [(1, MAYBE)]


def test_a_filter_that_is_not_open_says_nothing(build):
    """Nor does one that was forgotten, as after a fork."""
    Product.objects.create(pk=1)
    build("product")
    forget()
    before = shortcut_of("/products/1/")("/products/1/")
    guards["product"].decide(1)
    open_by_now = shortcut_of("/products/1/")("/products/1/")
    forget()

    assert (before, open_by_now, shortcut_of("/products/1/")("/products/1/")) == (False, True, False)


@pytest.mark.usefixtures("shop")
def test_it_asks_the_filter_that_the_guard_has_now():
    """A test gives a guard another filter, and takes it away: no path goes by one that the guard had once."""
    lets_pass = shortcut_of("/products/1/")
    with guards_armed("product"):
        Product.objects.create(pk=100)
        guards["product"].decide(100)
        meanwhile = lets_pass("/products/100/"), lets_pass("/products/102/")
    with guards_off():
        off = lets_pass("/products/1/")

    assert (meanwhile, off, lets_pass("/products/1/")) == ((True, False), False, True)


def test_a_store_that_waits_is_asked_once(build, settings, tmp_path):
    """Its check is a trip over the network: an absent ID would take two, and an event loop may take none."""
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {
                "BACKEND": "bloomguard.stores.redis.RedisStore",
                "OPTIONS": {"url": valkey(), "prefix": tmp_path.name},
            }
        }
    }
    forget()
    Product.objects.create(pk=1)
    build("product")
    product = guards["product"]

    assert product.decide(1) is MAYBE
    assert product.live.check_at_hand is None
    assert not shortcut_of("/products/1/")("/products/1/")


def test_what_was_found_out_takes_the_longer_way(build, client, settings, monkeypatch, django_assert_num_queries):
    """A replay is answered by the middleware, though the filter lets it through; others go by the shortcut."""
    settings.MIDDLEWARE = ["bloomguard.middleware.BloomGuardMiddleware"]
    for name, value in (("filter", "bloom"), ("error_rate", 0.2), ("capacity", 1_000)):
        monkeypatch.setattr(guards["product"], name, value, raising=False)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    build("product")
    found = next(value for value in range(10_000, 11_000) if guards["product"].decide(value) is MAYBE)
    passed = shortcut_of(f"/products/{found}/")(f"/products/{found}/")
    with pytest.raises(Http404):
        guards["product"].get_object_or_404(found)

    with django_assert_num_queries(0):
        assert client.get(f"/products/{found}/").status_code == 404
    assert passed
    assert shortcut_of("/products/1/")("/products/1/")
    assert guards["product"].decide(found) is REMEMBERED
