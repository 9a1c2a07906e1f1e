from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def role(each_database: str) -> Iterator[str]:
    """A new role of PostgreSQL that may write no table yet."""
    from .raw.sending import execute  # needs the app registry

    execute("CREATE ROLE raw_writer")
    execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO raw_writer")
    yield "raw_writer"
    execute("RESET ROLE")
    execute("DROP OWNED BY raw_writer")
    execute("DROP ROLE raw_writer")
