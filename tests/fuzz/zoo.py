"""The guards, several a table and of every kind, and the SQL by which a plain connection knows their rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Model, Q

from bloomguard.guards import Guard, registry

from . import models
from .models import (
    Annex,
    Article,
    Author,
    Club,
    Diary,
    Entry,
    Hall,
    Label,
    Note,
    Page,
    Place,
    Price,
    Profile,
    Seat,
    Tag,
    Tagging,
    Token,
)

_HALLS = "fuzz_hall h JOIN fuzz_place p ON p.id = h.place_ptr_id"
_ANNEXES = "fuzz_annex a JOIN fuzz_place p ON p.id = a.place_id"
_PAGES = "fuzz_page WHERE NOT hidden OR kept"


class Guarded(NamedTuple):
    """One guard. ``columns`` and ``rows`` are what the database is asked for, in SQL that no compiler has made."""

    model: type[Model]
    lookup: str | tuple[str, ...]
    filter: str
    columns: tuple[str, ...]
    rows: str
    alive: Q | None = None

    @property
    def name(self) -> str:
        lookup = self.lookup if isinstance(self.lookup, str) else ".".join(self.lookup)
        return f"{self.model.__name__.lower()}.{lookup}.{self.filter}".lower()

    @property
    def sql(self) -> str:
        return f"SELECT {', '.join(self.columns)} FROM {self.rows}"


GUARDED = [
    Guarded(Author, "pk", "bitmap", ("id",), "fuzz_author"),
    Guarded(Author, "pk", "cuckoo", ("id",), "fuzz_author"),
    Guarded(Profile, "pk", "bloom", ("author_id",), "fuzz_profile"),
    Guarded(Profile, "code", "cuckoo", ("code",), "fuzz_profile"),
    Guarded(Tag, "pk", "bitmap", ("id",), "fuzz_tag"),
    Guarded(Tag, "slug", "cuckoo", ("slug",), "fuzz_tag"),
    Guarded(Label, "slug", "bloom", ("slug",), "fuzz_tag WHERE weight >= 0", Q(weight__gte=0)),
    Guarded(Token, "pk", "cuckoo", ("id",), "fuzz_token"),
    Guarded(Token, ("author", "id"), "bloom", ("author_id", "id"), "fuzz_token"),
    Guarded(Seat, "pk", "cuckoo", ("bench", "number"), "fuzz_seat WHERE free", Seat.ALIVE),
    Guarded(Seat, ("number", "bench"), "bloom", ("number", "bench"), "fuzz_seat"),
    Guarded(Place, "slug", "bloom", ("slug",), "fuzz_place WHERE NOT closed", Q(closed=False)),
    Guarded(Hall, "pk", "bitmap", ("h.place_ptr_id",), _HALLS),
    Guarded(Hall, "slug", "cuckoo", ("p.slug",), f"{_HALLS} WHERE NOT p.closed AND h.chairs >= 0", Hall.ALIVE),
    Guarded(Annex, "pk", "bloom", ("a.code",), _ANNEXES),
    Guarded(Annex, "slug", "cuckoo", ("p.slug",), _ANNEXES),
    Guarded(Article, "pk", "bitmap", ("id",), "fuzz_article WHERE NOT deleted", Article.ALIVE),
    Guarded(Article, "slug", "bloom", ("slug",), "fuzz_article"),
    Guarded(Article, "slug", "cuckoo", ("slug",), "fuzz_article WHERE NOT deleted", Article.ALIVE),
    Guarded(Article, "topic", "cuckoo", ("topic_id",), "fuzz_article WHERE NOT deleted", Article.ALIVE),
    Guarded(Tagging, ("article", "tag"), "cuckoo", ("article_id", "tag_id"), "fuzz_tagging"),
    Guarded(Club.members.through, ("club", "author"), "cuckoo", ("club_id", "author_id"), "fuzz_club_members"),
    Guarded(Diary, "day", "bitmap", ("day",), "fuzz_diary"),
    Guarded(Diary, "amount", "cuckoo", ("amount",), "fuzz_diary"),
    Guarded(Price, "pk", "bloom", ("id",), "fuzz_price WHERE lower IN ('a2', 'a6')", Price.EVEN),
    Guarded(Price, "code", "cuckoo", ("code",), "fuzz_price WHERE gross >= 0", Price.ALIVE),
    Guarded(Page, ("author", "slug"), "cuckoo", ("author_id", "slug"), _PAGES, Page.ALIVE),
    Guarded(Note, "pk", "bloom", ("id",), "fuzz_note"),
    Guarded(Note, "about", "cuckoo", ("about_id",), "fuzz_note"),
    Guarded(Entry, "pk", "cuckoo", ("code",), "fuzz_entry"),
    Guarded(Entry, ("serial", "day"), "cuckoo", ("serial", "day"), "fuzz_entry"),
]
if hasattr(models, "Badge"):
    _NO_TAG = "fuzz_badge WHERE tag_id IS NULL"
    GUARDED.append(Guarded(models.Badge, "pk", "bloom", ("id",), _NO_TAG, models.Badge.ALIVE))


def register_all() -> dict[str, Guard]:
    """Register every guard with small filters."""
    made: dict[str, Guard] = {}
    for one in GUARDED:
        attributes: dict[str, Any] = {
            "name": one.name, "lookup": one.lookup, "filter": one.filter, "capacity": 200, "error_rate": 0.01,
        }  # fmt: skip
        if one.alive is not None:
            attributes["alive"] = one.alive
        guard = type("FuzzGuard", (Guard,), attributes)(one.model)
        registry.add(guard)
        made[one.name] = guard
    assert not registry.clashes
    return made
