"""A URLconf of thousands of patterns, and dozens of guards."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from django.urls import include, path
from django.views.generic import DetailView

from bloomguard.routes.patterns import Pattern, PatternIndex, patterns
from bloomguard.routes.table import RouteTable
from tests.shop.models import Article, Product
from tests.support.guarding import registered, urlconf

GUARDS = 50
ROUTES = 20


def view(request, pk):
    """Open, as far as anybody can tell."""


def site(size):
    """``size`` patterns, each tenth of them a class-based view, below sections of a hundred each."""
    sections = [
        [
            path(f"item{number}/<int:pk>/", DetailView.as_view(model=Article) if number % 10 == 9 else view,
                 name=f"item{number}")
            for number in range(start, min(size, start + 100))
        ]
        for start in range(0, size, 100)
    ]  # fmt: skip
    return urlconf(*(path(f"section{number}/", include(section)) for number, section in enumerate(sections)))


def looks(size, monkeypatch):
    """How often an attribute of a pattern is read while the table is made."""
    read = 0
    conf = site(size)
    plain = Pattern.__getattribute__

    def counting(self, name):
        nonlocal read
        read += 1
        return plain(self, name)

    with ExitStack() as stack, monkeypatch.context() as patch:
        for number in range(GUARDS):
            names = [f"item{(number * ROUTES + place) % size}" for place in range(ROUTES)]
            routes = dict.fromkeys(names, "pk") if number % 2 else "auto"
            stack.enter_context(registered(Product, name=f"guard-{number}", routes=routes))
        patch.setattr(Pattern, "__getattribute__", counting)
        table = RouteTable(conf)
    assert len(table.patterns) == size
    assert len(table.guarded) == GUARDS // 2 * ROUTES
    return read


@pytest.mark.django_db
def test_the_work_grows_with_the_patterns_and_not_with_patterns_times_guards(monkeypatch):
    """Each pattern is looked at a fixed number of times, whatever the number of guards and of other patterns."""
    small, large = looks(1_000, monkeypatch), looks(2_000, monkeypatch)

    assert large < 2.2 * small
    assert large / 2_000 < GUARDS


def test_the_index_finds_what_a_look_at_every_pattern_finds():
    """Earlier patterns, one of whose beginnings begins with the other: in Django's order."""
    texts = [
        "",
        "a",
        "a/",
        "a/b/",
        "ab/",
        "a/<int:x>/",
        "b/",
        "a/b/c/",
        "<str:y>/",
        "a/b/<int:pk>/",
        "a/",
        "b/<int:z>/",
    ]
    known = list(patterns(urlconf(*(path(text, view) for text in texts))))
    index = PatternIndex(known)

    for place, mine in enumerate(known):
        expected = [
            other
            for other in known[:place]
            if mine.literal.startswith(other.literal) or other.literal.startswith(mine.literal)
        ]
        assert list(index.overlapping(mine)) == expected
