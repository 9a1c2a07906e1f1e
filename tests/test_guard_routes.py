"""``manage.py guard_routes``: who guards what, and why not."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Q

from tests.guarding import registered
from tests.shop.models import Article, Product


@pytest.fixture
def guards(settings):
    settings.ROOT_URLCONF = "tests.shop.features"
    with (
        registered(Product, name="auto", routes="auto"),
        registered(Article, name="auto-slug", lookup="slug", alive=Q(deleted=False), routes="auto"),
        registered(Product, name="named", routes=["function", "decorated"]),
    ):
        yield


def rows(capsys, *arguments):
    call_command("guard_routes", "--json", *arguments)
    return json.loads(capsys.readouterr().out)["routes"]


@pytest.mark.parametrize(
    ("name", "guard", "answered", "reason"),
    [
        ("detail", "auto", "by the middleware", ""),
        ("alive", "auto-slug", "by the middleware", ""),
        ("own-queryset", "auto", "by its view", ""),
        ("private", "auto", "by its view", "LoginRequiredMixin demands something of the user"),
        ("guarded", "auto", "by the middleware", ""),
        ("topped", "auto", "by @guarded", ""),
        ("function", "named", "by the middleware", ""),
        ("own-object", "", "", "OwnObject has a get_object of its own"),
        ("deleted", "", "", "its view may show rows that the guard 'auto-slug' does not know"),
    ],
)  # fmt: skip
def test_each_pattern_is_told_of(guards, capsys, name, guard, answered, reason):
    """Which guard, how it is answered, and what is in the way."""
    [row] = [row for row in rows(capsys) if row["name"] == name]

    assert (row["guard"], row["answered"]) == (guard, answered)
    assert reason in row["reason"]


def test_a_guard_that_is_named_in_vain_is_told_of(guards, capsys):
    """A named route whose view demands something is listed with what it demands."""
    found = [row for row in rows(capsys) if row["name"] == "decorated" and row["guard"] == "named"]

    assert [(row["answered"], row["reason"]) for row in found] == [
        ("", "a decorator of django.contrib.auth demands something of the user")
    ]


def test_only_patterns_with_an_identifier_are_listed(guards, capsys):
    """A pattern that captures nothing has nothing to guard; ``--unguarded`` leaves out the guarded ones."""
    every, unguarded = rows(capsys), rows(capsys, "--unguarded")

    assert "product-list" not in [row["name"] for row in every]
    assert {row["answered"] for row in unguarded} == {""}
    assert 0 < len(unguarded) < len(every)


def test_it_reads_well(guards, capsys):
    """One line a pattern, and how many are guarded."""
    call_command("guard_routes")
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith("/p/<int:pk>/") and line.endswith("auto, answered by the middleware") for line in lines)
    assert any("not guarded: OwnObject has a get_object of its own" in line for line in lines)
    assert lines[-1].endswith("patterns that take an identifier are guarded")


def test_another_urlconf(guards, capsys):
    """``--urlconf`` takes another one than ``ROOT_URLCONF``; one that is not there is said to be missing."""
    assert rows(capsys, "--urlconf", "tests.shop.urls")[0]["name"] == "product"
    with pytest.raises(CommandError, match=r"there is no URLconf 'no\.such'"):
        call_command("guard_routes", urlconf="no.such")
