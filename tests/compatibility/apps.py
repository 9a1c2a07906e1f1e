"""Which apps the folders try, and which of them are installed."""

from __future__ import annotations

from importlib.util import find_spec

HOW = "apps from PyPI are tried by a run of their own, which installs them: nox -s compatibility"

#: A folder here, and what its site has in ``INSTALLED_APPS``.
APPS: dict[str, list[str]] = {
    "with_filer": ["easy_thumbnails", "polymorphic", "filer"],
    "with_guardian": ["guardian"],
    "with_import_export": ["import_export"],
    "with_model_utils": ["model_utils"],
    "with_mptt": ["mptt"],
    "with_parler": ["parler"],
    "with_polymorphic": ["polymorphic"],
    "with_reversion": ["reversion"],
    "with_simple_history": ["simple_history"],
    "with_treebeard": ["treebeard"],
}


def installed() -> dict[str, list[str]]:
    """The folders whose apps are there."""
    return {folder: apps for folder, apps in APPS.items() if all(map(find_spec, apps))}
