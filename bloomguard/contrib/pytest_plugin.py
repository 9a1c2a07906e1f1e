"""The pytest plugin with the fixture ``armed_guards``; pytest loads it if bloomguard is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def armed_guards(db: None) -> Iterator[None]:
    """Arm every guard with a filter in memory that follows the test's database.

    ``db`` is an argument, and not requested in the body, since pytest-django chooses the databases that it replaces by
    the names of fixtures. It opens the database as ``transactional_db`` and the like do, if the test requests those.
    """
    from ..testing import guards_armed  # imported here, so that other test runs do not load Django

    with guards_armed():
        yield
