from __future__ import annotations

import pytest

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
