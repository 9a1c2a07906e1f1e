"""Only what is installed is run, and only on the settings of this folder; everything else says how."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import path

from tests.compatibility.apps import HOW, installed
from tests.compatibility.rules import Rules
from tests.support.guarding import urlconf


class Untried(pytest.Module):
    """The tests of an app that is not there."""

    def collect(self) -> Any:
        pytest.skip(HOW)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Import the tests of an app only if it is there."""
    is_ours = django_settings.ROOT_URLCONF == "tests.compatibility.urls"
    if is_ours and module_path.parent.name in installed():
        return None
    untried: pytest.Module = Untried.from_parent(parent, path=module_path)
    return untried


@pytest.fixture
def rules(request: pytest.FixtureRequest, clock: Any, client: Any, build: Callable[..., Any]) -> Rules:
    """The rules, for the guards of the test's own folder."""
    guards = importlib.import_module(f"{request.module.__package__}.guards")
    return Rules(guards, client=client, clock=clock, build=build)


@pytest.fixture
def staff(client: Any, settings: Any, transactional_db: None) -> None:
    """The client is somebody who may do everything in the admin."""
    settings.ROOT_URLCONF = urlconf(path("admin/", admin.site.urls))
    client.force_login(User.objects.create_superuser("staff"))
