from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bloomguard.guards import Guard, registry


@pytest.fixture
def product(each_database: str, build: Callable[[str], Any], clock: Any) -> Guard:
    """A guard in use; product 1 exists."""
    from tests.shop.models import Product  # needs the app registry

    Product.objects.create(pk=1, name="old")
    build("product")
    clock.now += 10
    return registry["product"]
