"""Built filters, and a look at the moment of a fence."""

from __future__ import annotations

import pytest

from bloomguard.state import table as state
from bloomguard.writes import fencing, raw_fences
from tests.shop.models import Article, Product


@pytest.fixture
def built(each_database, build):
    """The filters of products and articles."""
    Product.objects.create(pk=1, name="one")
    Article.objects.create(pk=1, slug="old")
    for name in ("product", "article"):
        build(name)
    raw_fences._log.forget()


@pytest.fixture
def all_built(built, build):
    """Those of orders and places, too."""
    for name in ("order", "place"):
        build(name)


@pytest.fixture
def seen_at_the_fence(built, monkeypatch):
    """What another connection sees of row 7 each time a guard has just been fenced."""
    seen = []
    fence = fencing.fence

    def watched(reasons, using):
        fenced = fence(reasons, using)
        seen.append(state.table.connection.execute("SELECT id FROM shop_product WHERE id = 7")[0])
        return fenced

    monkeypatch.setattr(fencing, "fence", watched)
    return seen
