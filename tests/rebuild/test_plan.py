"""A rebuild has a reason, or there is none to do it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import Q
from django.utils import timezone

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.rebuild.plan import assess
from bloomguard.rebuild.source import Source
from bloomguard.state import table as states
from bloomguard.stores import stores
from tests.conftest import forget
from tests.shop.guards import ArticleGuard, ProductGuard
from tests.shop.models import Article, Product

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock"),
]


@pytest.fixture
def product(clock, monkeypatch):
    """A guard with 1,000 rows and a Bloom filter for 1,500, built just now."""
    monkeypatch.setattr(ProductGuard, "filter", "bloom")
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    Rebuild(registry["product"], sleep=clock.sleep).run()
    return registry["product"]


def test_a_filter_that_is_well_needs_nothing(product):
    """No reason, and the figures that it was judged by."""
    need = assess(product, max_age=3_600.0)

    assert need.reasons == ()
    assert (need.rows, need.capacity) == (1_000, 1_500)
    assert 980 <= need.keys <= 1_020
    assert need.stale_share < 0.02
    assert need.age_seconds < 60


@pytest.mark.usefixtures("each_database")
def test_what_was_never_built_needs_to_be():
    """No generation is a reason."""
    need = assess(registry["product"], max_age=1.0)

    assert need.reasons == ("there is no filter yet",)
    assert need.age_seconds is None


def test_a_fence_is_a_reason(product):
    """And why it was fenced is told; a driver's own reason may end with a full stop."""
    states.table.fence("product", "a write was not proved.")

    assert assess(product).reasons == ("it is fenced: a write was not proved",)


def test_another_store_is_a_reason(product):
    """What lies in another store, or was there before a restart, answers nothing here."""
    folder = stores["default"].path
    folder.rename(folder.with_name("former"))
    forget()

    why = f"its filter was built in another store than the folder {folder}, or before this host was restarted"
    assert assess(product).reasons == (f"{why}; run rebuild_filter",)

    states.table.fence("product", f"{why}; run rebuild_filter")  # as the first write does

    assert assess(product).reasons == (f"it is fenced: {why}; run rebuild_filter",)


def damage():
    """Change one bit behind the beginning of the product's filter, as a failing disk does."""
    (path,) = (stores["default"].path / "product").glob("*.filter")
    data = bytearray(path.read_bytes())
    data[-200] ^= 4
    path.write_bytes(data)
    forget()


def test_a_damaged_filter_is_a_reason(product):
    """A filter that cannot be trusted is told of with what is wrong."""
    damage()

    (reason,) = assess(product).reasons

    assert "checksum" in reason or "damaged" in reason


@pytest.mark.parametrize("fallbacks", [True, False])
def test_a_former_secret_is_a_reason(fallbacks, product, settings):
    """Whether the secret is still among the fallbacks, until it is taken out, or is not known any more."""
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if fallbacks else []
    settings.SECRET_KEY = "another"
    forget()

    (reason,) = assess(product).reasons

    assert "SECRET_KEY" in reason


def test_another_definition_is_a_reason(build, monkeypatch):
    """A guard that means other rows by now."""
    Article.objects.create(slug="here")
    build("article")

    class AlwaysAlive(ArticleGuard):
        name = "article"
        alive = Q()

    (reason,) = assess(AlwaysAlive(Article)).reasons

    assert "another definition of its guard" in reason


@pytest.mark.parametrize(("attribute", "value"), [("error_rate", 0.0001), ("filter", "cuckoo")])
def test_another_shape_is_a_reason(attribute, value, product, monkeypatch):
    """A guard that asks for another error rate, or another kind of filter."""
    monkeypatch.setattr(ProductGuard, attribute, value)

    (reason,) = assess(product).reasons

    assert "a bloom filter for an error rate of 0.001" in reason
    assert str(value) in reason


@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_full_filter_is_a_reason(kind, product, clock, monkeypatch):
    """Close to its capacity, by the keys that are in it: those of rows that came, and of rows that went again."""
    monkeypatch.setattr(ProductGuard, "filter", kind)
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1_001, 10_001))
    Rebuild(product, sleep=clock.sleep).run()
    Product.objects.bulk_create([Product(pk=pk) for pk in range(20_000, 23_700)], batch_size=1_000)

    (reason,) = assess(product).reasons

    assert reason.endswith("keys, and its capacity is 15,000")


def test_a_capacity_that_is_given_is_no_reason_for_ever(product, clock, monkeypatch):
    """Where a rebuild would make no more room, cron does not rebuild each time."""
    monkeypatch.setattr(ProductGuard, "capacity", 1_010)
    Rebuild(product, sleep=clock.sleep).run()

    assert assess(product).reasons == ()


def test_stale_keys_are_a_reason(product):
    """More than a quarter of the keys belongs to rows that are gone."""
    Product.objects.filter(pk__lte=200).delete()
    few = assess(product)
    Product.objects.filter(pk__lte=300).delete()
    many = assess(product)

    assert few.reasons == ()
    assert 0.18 < few.stale_share < 0.22
    assert 0.28 < many.stale_share < 0.32  # as a Bloom filter's size can be estimated
    assert many.reasons == (f"{many.stale_share:.0%} of its keys belong to rows that are gone",)


def test_an_estimate_of_too_few_rows_is_no_reason(product, monkeypatch):
    """PostgreSQL's may be from before many rows were written: the rows are counted, and cron builds nothing."""
    monkeypatch.setattr(Source, "_count", lambda self, low=0, high=0: 300)

    assert assess(product).reasons == ()


def test_age_is_a_reason_only_if_asked_for(product):
    """Older than ``max_age``, from the last publication on."""
    states.table.swap(states.table.current("product"), published_at=timezone.now() - timedelta(hours=25))

    assert assess(product).reasons == ()
    assert assess(product, max_age=26 * 3_600.0).reasons == ()
    assert assess(product, max_age=24 * 3_600.0).reasons == ("it is 25.0 hours old, more than 24.0",)


def test_a_damaged_shard_is_a_reason(product, clock, monkeypatch):
    """Of several shards each is verified when it is first read: also by what asks whether a rebuild is needed."""
    monkeypatch.setattr(type(stores["default"]), "shard_bytes", 512)
    Rebuild(product, sleep=clock.sleep).run()
    damage()

    (reason,) = assess(product).reasons

    assert "checksum" in reason
