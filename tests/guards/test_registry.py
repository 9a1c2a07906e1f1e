"""What follows from the guards, the settings and the URLs is made anew when one of them changes."""

from __future__ import annotations

import pytest
from django.urls import clear_url_caches

from bloomguard.guards import Guard, registry
from bloomguard.lookups.select import lookups_of
from bloomguard.routes import table
from bloomguard.routes.table import table_for
from tests.shop.models import Product


def change_a_setting(settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE]


@pytest.mark.parametrize(
    "change",
    [lambda settings: registry.changed(), change_a_setting, lambda settings: clear_url_caches()],
    ids=["guards", "settings", "URLs"],
)
def test_what_follows_from_them_is_made_anew(change, settings):
    """Routes and lookups alike; until then they are the same."""
    routes, lookups = table_for(), lookups_of(Product)
    before = table_for() is routes and lookups_of(Product) is lookups
    change(settings)

    assert before
    assert table_for() is not routes
    assert lookups_of(Product) is not lookups


def test_a_table_of_guards_that_have_changed_meanwhile_is_not_kept(monkeypatch):
    """A guard that another thread registers while a table is built may be missing there."""
    built = []

    class Late(table.RouteTable):
        def __init__(self, urlconf):
            super().__init__(urlconf)
            built.append(self)
            if len(built) == 1:
                registry.changed()

    registry.changed()
    monkeypatch.setattr(table, "RouteTable", Late)

    assert [table_for() for _ in range(3)] == [built[0], built[1], built[1]]
    registry.changed()


def test_an_import_that_fails_costs_no_other_guard_its_registration(monkeypatch):
    """Python imports a module once: what it has registered stays. The one that failed is imported again later."""
    monkeypatch.setattr(registry, "_guards", dict(registry._guards))
    monkeypatch.setattr(registry, "classes", set(registry.classes))
    before = set(registry.classes)

    class Imported(Guard):
        name = "imported"

    class Failed(Guard):
        name = "failed"

    Failed.__module__ = "tests.of_a_module_that_python_has_dropped"
    with registry.importing():
        registry.add(Imported(Product))
        registry.add(Failed(Product))
        raise ImportError("for a test")

    assert "imported" in registry._guards
    assert "failed" not in registry._guards
    assert registry.classes - before == {Imported}
