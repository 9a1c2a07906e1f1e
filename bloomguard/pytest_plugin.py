"""The pytest plugin with the fixture ``armed_guards``; pytest loads it if bloomguard is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_OPENERS = ("django_db_reset_sequences", "django_db_serialized_rollback", "transactional_db", "db")


@pytest.fixture
def armed_guards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Arm every guard with a filter in memory that follows the test's database.

    The database is opened first, by the database fixture that the test requests, else by ``db``.
    """
    openers = [name for name in _OPENERS if name in request.fixturenames]
    for name in openers or ["db"]:
        request.getfixturevalue(name)
    from .testing import guards_armed  # imported here, so that other test runs do not load Django

    with guards_armed():
        yield
