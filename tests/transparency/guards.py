"""The guards of the site, as each mode has them. Nobody registers them but a pass of the harness."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from bloomguard.guards import Guard

from .models import Entry, Note, Place
from .urls import PAGES

MODELS: dict[str, Any] = {"entry": Entry, "entry-slug": Entry, "entry-any": Entry, "note": Note, "place": Place}
OPTIONS: dict[str, dict[str, Any]] = {
    "entry": {"alive": Q(alive=True)},
    "entry-slug": {"lookup": "slug", "alive": Q(alive=True)},
    "entry-any": {},
    "note": {"filter": "cuckoo"},
    "place": {"lookup": ("country", "slug"), "filter": "bloom"},
}


def guards_of(mode: str) -> list[Guard]:
    """One guard for each kind of ID. ``mode`` is ``"lookup"``, ``"route"``, ``"auto"`` or ``"door"``."""
    return [
        type(f"{name.title()}Guard", (Guard,), {"name": name, **options, "routes": _routes(name, mode)})(MODELS[name])
        for name, options in OPTIONS.items()
    ]


def _routes(name: str, mode: str) -> Any:
    if mode == "lookup":
        return ()
    if mode == "auto":
        return "auto"
    return {page.name: page.kwarg for page in PAGES if page.guard == name}
