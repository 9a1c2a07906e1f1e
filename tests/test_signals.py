"""bloomguard's own signals: who is told what, and that no receiver can do harm."""

from __future__ import annotations

import functools
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import AsyncClient, Client

from bloomguard import signals
from bloomguard.guards import registry, spot_checks
from bloomguard.models import GuardState
from bloomguard.rebuild import rebuild, roll_back_all
from bloomguard.rebuild.verify import Verification
from bloomguard.state import table as state
from tests.door.site import Asgi, Wsgi
from tests.management.test_verify_filter import insert_unseen
from tests.shop.models import Product

#: What Django's signals hand over beside what is ours.
DJANGOS = {"signal", "sender"}


@contextmanager
def listening(signal, *, fails=None):
    """All that is sent in the block, as dictionaries; the receiver raises ``fails``."""
    sent = []

    def receive(**given):
        sent.append(given)
        if fails:
            raise fails

    signal.connect(receive, weak=False)
    try:
        yield sent
    finally:
        signal.disconnect(receive)


@pytest.fixture
def shop(build):
    Product.objects.create(pk=7)
    build("product")
    return build


@pytest.mark.parametrize(
    ("get", "url"),
    [
        (lambda url: Client().get(url), "/products/8/"),
        (lambda url: async_to_sync(AsyncClient().get)(url), "/products/8/"),
        (lambda url: Client().get(url), "/decorated/8/"),
        (lambda url: async_to_sync(AsyncClient().get)(url), "/decorated-async/8/"),
    ],
    ids=["middleware", "async middleware", "decorator", "async decorator"],
)
@pytest.mark.parametrize("fails", [None, ValueError("a receiver of somebody's")], ids=["", "failing"])
def test_a_blocked_request_is_told(shop, get, url, fails):
    """Once, with the guard and the request, and the answer is 404 whatever the receiver does."""
    with listening(signals.request_blocked, fails=fails) as sent:
        assert get(url).status_code == 404

    assert [(each["sender"], each["guard"], each["request"].path) for each in sent] == [
        (type(registry["product"]), registry["product"], url)
    ]


def test_what_passes_is_not_told(shop):
    """A row that exists, and one that Django itself does not find, are nobody's news."""
    with listening(signals.request_blocked) as sent:
        assert Client().get("/products/7/").status_code == 200
        Product.objects.all().delete()
        assert Client().get("/products/7/").status_code == 404

    assert sent == []


@pytest.mark.parametrize("site", [Wsgi, Asgi])
@pytest.mark.parametrize("fails", [None, ValueError("a receiver of somebody's")], ids=["", "failing"])
def test_the_front_door_tells_without_a_request(shop, site, fails):
    """There is no request of Django's yet."""
    door = site()
    with listening(signals.request_blocked, fails=fails) as sent:
        assert door("/products/8/").status == 404

    assert [(each["guard"], each["request"]) for each in sent] == [(registry["product"], None)]
    assert door.reached == []


def test_a_receiver_that_cannot_even_be_logged_does_no_harm(shop, caplog):
    """Django logs a receiver by its name, which a partial lacks."""

    def receive(number, **given):
        raise ValueError(number)

    receiver = functools.partial(receive, 1)
    signals.request_blocked.connect(receiver)
    try:
        assert Client().get("/products/8/").status_code == 404
        assert async_to_sync(AsyncClient().get)("/products/8/").status_code == 404
    finally:
        signals.request_blocked.disconnect(receiver)

    assert [record.getMessage() for record in caplog.records if record.name == "bloomguard"] == [
        "bloomguard could not call a receiver of one of its signals"
    ] * 2


def test_an_async_receiver_is_called(shop):
    """On async sites a receiver may be a coroutine."""
    sent = []

    async def receive(**given):
        sent.append(given["guard"].name)

    signals.request_blocked.connect(receive)
    try:
        async_to_sync(AsyncClient().get)("/products/8/")
    finally:
        signals.request_blocked.disconnect(receive)

    assert sent == ["product"]


@pytest.mark.parametrize("fails", [None, ValueError("a receiver of somebody's")], ids=["", "failing"])
def test_a_publication_is_told(shop, fails):
    """A rebuild tells its generation and its rows, when the state row names it already."""
    active = []
    with listening(signals.generation_published, fails=fails) as sent:
        shop("product")
        active.append(GuardState.objects.get(name="product").active)

    assert [{name: each[name] for name in each if name not in DJANGOS} for each in sent] == [
        {"guard": registry["product"], "generation": active[0], "rows": 1}
    ]
    assert sent[0]["sender"] is type(registry["product"])


def test_a_roll_back_is_told(shop, clock):
    """So does a return to the generation before; how many rows it has is not known."""
    before = GuardState.objects.get(name="product").active
    rebuild.Rebuild(registry["product"], keep_standby=3_600, sleep=clock.sleep).run()
    with listening(signals.generation_published) as sent:
        roll_back_all([registry["product"]], clock.sleep)

    assert [(each["generation"], each["rows"]) for each in sent] == [(before, None)]


@pytest.mark.parametrize("fails", [None, ValueError("a receiver of somebody's")], ids=["", "failing"])
def test_a_fence_is_told(shop, clock, fails):
    """Once, by the process that fences, with the reason."""
    with listening(signals.guard_fenced, fails=fails) as sent:
        state.table.fence("product", "for a test")
        state.table.fence("product", "once more")

    assert [(each["sender"], each["name"], each["reason"]) for each in sent] == [(GuardState, "product", "for a test")]
    assert GuardState.objects.get(name="product").status == "fenced"


def test_a_failing_receiver_lets_the_write_commit(shop, clock, monkeypatch):
    """A write whose add fails fences its guard, tells it, and is committed."""
    monkeypatch.setattr(type(registry["product"]._runtime.active_filter), "add", lambda *args: False)
    with listening(signals.guard_fenced, fails=ValueError("a receiver of somebody's")) as sent, transaction.atomic():
        Product.objects.create(pk=9)

    assert [each["name"] for each in sent] == ["product"]
    assert Product.objects.filter(pk=9).exists()


@pytest.mark.parametrize("fails", [None, ValueError("a receiver of somebody's")], ids=["", "failing"])
@pytest.mark.parametrize("by", ["a spot check", "a verification"])
def test_a_false_absence_is_told(shop, clock, monkeypatch, fails, by):
    """A row that no sync saw is told with its ID, whoever finds it; the request passes, and the guard is fenced."""
    insert_unseen("shop_product", id=5_000, name="x")
    monkeypatch.setattr(spot_checks, "drawn", lambda: True)

    with listening(signals.false_negative_found, fails=fails) as sent:
        if by == "a spot check":
            assert Client().get("/products/5000/").status_code == 200
        else:
            assert Verification(registry["product"]).run().missing == 1

    assert [(each["sender"], each["guard"], each["value"]) for each in sent] == [
        (type(registry["product"]), registry["product"], 5_000)
    ]
    assert GuardState.objects.get(name="product").status == "fenced"
