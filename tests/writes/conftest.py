from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bloomguard.guards import Guard, registry
from bloomguard.rebuild import refusals
from bloomguard.rebuild.verify import PublishCheck


@pytest.fixture(autouse=True)
def quick_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a build asks of the database before it begins, and proves at its end, takes a third of its time.

    Both are tested in ``tests/rebuild``; here thousands of filters of a few rows are built.
    """
    monkeypatch.setattr(refusals, "database_refusals", lambda *arguments: [])
    monkeypatch.setattr(PublishCheck, "verify_rows", lambda *arguments: 0)
    monkeypatch.setattr(PublishCheck, "error_rate", lambda *arguments: 0.0)


@pytest.fixture
def product(each_database: str, build: Callable[[str], Any], clock: Any) -> Guard:
    """A guard in use; product 1 exists."""
    from tests.shop.models import Product  # needs the app registry

    Product.objects.create(pk=1, name="old")
    build("product")
    clock.now += 10
    return registry["product"]
