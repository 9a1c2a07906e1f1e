"""Guards and URLconfs that one test has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from django.db.models import Model

from bloomguard.guards import Guard, registry


def make_guard(model: type[Model], **attributes: Any) -> Guard:
    """A guard of a class of its own, registered nowhere."""
    return type("TemporaryGuard", (Guard,), attributes)(model)


@contextmanager
def registered(model: type[Model], **attributes: Any) -> Iterator[Guard]:
    """A guard that is registered as long as the block lasts."""
    guard = make_guard(model, **attributes)
    registry.add(guard)
    try:
        yield guard
    finally:
        registry.remove(guard)
        registry.clashes[:] = [clash for clash in registry.clashes if clash is not guard]


def urlconf(*patterns: Any, **attributes: Any) -> ModuleType:
    """A URLconf of these patterns; ``attributes`` are its handlers."""
    module = ModuleType("urls_of_a_test")
    module.urlpatterns = list(patterns)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module
