"""The combinations: each has a row and a session of its own, so that none changes what another one sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from zlib import crc32

from django.contrib.admin.utils import quote

from .settings import VARIANT
from .urls import PAGES, Page

STATES = ["absent", "present", "hidden", "deleted", "rolled back"]
PERSONS = ["anonymous", "user", "staff"]
METHODS = ["GET", "HEAD", "OPTIONS", "POST"]

#: What is special about a request: headers, or a word in capitals, which the harness knows.
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "if-none-match": {"If-None-Match": "*"},
    "if-modified-since": {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
    "if-match": {"If-Match": '"no such tag"'},
    "range": {"Range": "bytes=0-9"},
    "german": {"Accept-Language": "de"},
    "french-cookie": {"COOKIE": "django_language=fr"},
    "json": {"Accept": "application/json"},
    "html": {"Accept": "text/html"},
    "csv": {"Accept": "text/csv"},
    "gzip": {"Accept-Encoding": "gzip"},
    "tenant": {"Host": "shop.testserver"},
    "closed-tenant": {"Host": "closed.testserver"},
    "stranger": {"Host": "evil.example"},
    "outside": {"ADDRESS": "203.0.113.77"},
    "maintenance": {"MAINTENANCE": "on"},
    "origin": {"Origin": "https://friend.example"},
    "other-origin": {"Origin": "https://foe.example"},
    "preflight": {"Origin": "https://friend.example", "Access-Control-Request-Method": "GET"},
    "referer": {"Referer": "http://testserver/from/here/", "User-Agent": "Browser"},
    "https": {"SCHEME": "https"},
    "ajax": {"X-Requested-With": "XMLHttpRequest"},
    "no-token": {"TOKEN": ""},
    "no-slash": {"PATH": "no slash"},
    "key": {"QUERY": "k=1"},
    "remote-user": {"REMOTE_USER": "user"},
}


@dataclass(frozen=True)
class Combination:
    """One request: of a person, for a row in some state."""

    number: int
    page: Page
    state: str
    person: str
    method: str
    kind: str

    def __str__(self) -> str:
        return f"{self.page.name} {self.state} {self.person} {self.method} {self.kind}"

    @property
    def pk(self) -> int:
        return 1_000 + self.number

    @property
    def values(self) -> dict[str, str]:
        """What addresses are made of."""
        name = f"n_{self.number}"
        return {
            "pk": str(self.pk),
            "slug": f"entry-{self.number}",
            "upper": f"ENTRY-{self.number}",
            "name": name,
            "quoted": quote(name),
            "code": "de",
            "year": "2020",
            "month": "2",
            "day": "2",
            "content_type": "{content_type}",  # the harness knows it
        }

    @property
    def address(self) -> str:
        return self.page.address_of(self.values)

    @property
    def has_session(self) -> bool:
        return self.person != "anonymous" or self.number % 2 == 1

    def is_for(self, mode: str) -> bool:
        """Whether the mode may answer here as no other mode does, or this is one of a few that it looks at besides."""
        if mode.startswith("asgi-"):
            return self.number % 8 == 0
        if mode in {"route", "door"}:
            return bool(self.page.guard) or self.number % 4 == 0
        if mode == "auto":
            return self.page.is_class_based or self.number % 4 == 0
        return True


#: Of how many combinations one is taken.
SHARES = {"GET": 2, "HEAD": 5, "OPTIONS": 12, "POST": 6}


def combinations(share: int = 1) -> list[Combination]:
    """The table of this variant: a draw, the same in each run, from all that there is; ``share`` thins it."""
    chosen = dict.fromkeys(_drawn(share))
    return [Combination(number, *what) for number, what in enumerate(chosen, 1)]


def _drawn(share: int) -> Iterator[tuple[Page, str, str, str, str]]:
    kinds = list(KINDS)
    # Who may ask for what in which way; every other request is a plain one.
    for page, state, person, method in product(PAGES, STATES, PERSONS, METHODS):
        drawn = crc32(f"{VARIANT} {page.name} {state} {person} {method}".encode())
        if drawn % (SHARES[method] * share) == 0:
            yield page, state, person, method, kinds[max(0, drawn // 97 % (2 * len(kinds)) - len(kinds))]
    # What an attacker sends, and each thing that can be special about it.
    for page, kind in product(PAGES, kinds):
        drawn = crc32(f"{VARIANT} {page.name} {kind}".encode())
        if drawn % (8 * share) == 0:
            yield page, "absent", PERSONS[drawn // 97 % 3], "GET", kind
