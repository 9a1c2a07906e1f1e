"""The pytest plugin: the fixture ``armed_guards``. It is there wherever bloomguard is, for those who ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_OPENERS = ("django_db_reset_sequences", "django_db_serialized_rollback", "transactional_db", "db")


@pytest.fixture
def armed_guards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every guard answers from a filter in memory that follows the test's database.

    The test's database is opened first, by the fixture that the test asks for, else by ``db``.
    """
    openers = [name for name in _OPENERS if name in request.fixturenames]
    for name in openers or ["db"]:
        request.getfixturevalue(name)
    from .testing import guards_armed  # here, so that a run that has no use for it loads nothing of Django

    with guards_armed():
        yield
