"""Fixtures for the tests of commands."""

from __future__ import annotations

import pytest
from django.core.management.base import BaseCommand


@pytest.fixture
def from_the_command_line(monkeypatch):
    """`call_command()` runs the command as `manage.py` does."""
    monkeypatch.setattr(BaseCommand, "_called_from_command_line", True)
