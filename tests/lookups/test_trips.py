"""With filters on a server a request that asks for a row makes one trip, whoever asks first."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.stores import stores
from tests.conftest import forget
from tests.shop.models import Product
from tests.support.patience import PATIENT
from tests.support.servers import valkey

pytestmark = pytest.mark.django_db(transaction=True)


def wsgi(url):
    return Client().get(url)


def asgi(url):
    return async_to_sync(AsyncClient().get)(url)


@pytest.fixture
def trips(settings, clock, tmp_path, monkeypatch):
    """What is asked of the server by a site with product 7: one entry a trip."""
    settings.BLOOMGUARD = {
        "STORES": {
            "default": {
                "BACKEND": "bloomguard.stores.redis.RedisStore",
                "OPTIONS": {"url": valkey(), "prefix": tmp_path.name, **PATIENT},
            }
        }
    }
    forget()
    Product.objects.create(pk=7)
    Rebuild(registry["product"], sleep=clock.sleep).run()
    made = []
    store = stores["default"]
    read, aread = store.read, store.aread
    monkeypatch.setattr(store, "read", lambda *args: made.append("thread") or read(*args))
    monkeypatch.setattr(store, "aread", lambda *args: made.append("loop") or aread(*args))
    yield made
    forget()


@pytest.mark.parametrize("get", [wsgi, asgi])
@pytest.mark.parametrize("url", ["/products/7/", "/products-async/7/", "/products/8/", "/decorated/7/"])
def test_one_trip_a_request(trips, get, url):
    """Asked at the route, or by ``@guarded``, and looked up in the view: one trip."""
    get(url)
    trips.clear()
    statuses = {get(url).status_code for _ in range(3)}

    assert statuses == {404 if "8" in url else 200}
    # `@guarded` on a sync view asks where the view runs.
    assert trips == ["thread" if get is wsgi or "decorated" in url else "loop"] * 3
