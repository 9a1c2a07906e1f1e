"""`alive`: one form in words for every process, and nothing that changes without a write of the row."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Exists, F, OuterRef, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Lower, Now
from django.utils import timezone

from bloomguard.alive import Unstable, doubts, in_words
from bloomguard.checks import check_guards

from .guarding import make_guard, registered
from .shop.models import Article, Bundle, Exhibit, Product

SAME = [
    (Q(slug__in={"a", "b", "c"}), Q(slug__in={"c", "b", "a"})),
    (Q(slug__in=frozenset("xyz")), Q(slug__in=set("zyx"))),
    (Q(a=1, b=2), Q(b=2, a=1)),
    (Q(slug=Lower("slug")), Q(slug=Lower("slug"))),
]
OTHERS = [
    Q(),
    Q(deleted=False),
    ~Q(deleted=False),
    Q(deleted=0),
    Q(deleted="False"),
    Q(deleted=None),
    Q(deleted=False) | Q(slug="a"),
    Q(deleted=False) & Q(slug="a"),
    Q(deleted=False) & ~Q(slug="a"),
    Q(slug__in=["a", "b"]),
    Q(slug__in=["b", "a"]),
    Q(slug=F("id")),
    Q(slug=Value("id")),
    Q(slug="id"),
    Q(id=1),
    Q(id=Decimal(1)),
    Q(made=datetime.date(2024, 1, 1)),
    Q(made=datetime.datetime(2024, 1, 1)),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=range(len(SAME)))
def test_what_means_the_same_reads_the_same(one, other):
    """The order of a set, or of keyword arguments, is nobody's intention."""
    assert in_words(one) == in_words(other)


def test_what_means_something_else_reads_otherwise():
    """No two different conditions share a form."""
    assert len({in_words(each) for each in OTHERS}) == len(OTHERS)


def test_another_process_reads_the_same():
    """Whatever its hash seed is: a filter that one process built is asked by all."""
    code = "from django.db.models import Q; from bloomguard.alive import in_words; "
    code += "print(in_words(Q(a__in={'x', 'y', 'z', 'long', 'longer'}) | ~Q(b=None)))"
    forms = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }

    assert len(forms) == 1


def test_what_has_no_form_is_named():
    """An object that is different in every process cannot be part of the condition."""
    with pytest.raises(Unstable, match="object"):
        in_words(Q(slug=object()))


DOUBTFUL = [
    (Permission, Q(content_type__app_label="shop"), "the table django_content_type"),
    (Article, Q(slug__in=Article.objects.values("slug")), "form that is the same|a subquery"),
    (Article, Exists(Product.objects.filter(name=OuterRef("slug"))) & Q(), "form that is the same|a subquery"),
    (Article, Q(slug__lt=Now()), r"Now\(\)"),
    (Article, Q(slug=RawSQL("now()", [])), "raw SQL|form that is the same"),
    (Article, Q(slug=object()), "form that is the same"),
    (Article, Q(nothing=1), "cannot be asked for"),
    (User, Q(last_login__lt=timezone.now().replace(microsecond=7)), "looks like the one when"),
]


@pytest.mark.parametrize(("model", "alive", "said"), DOUBTFUL, ids=[each[2] for each in DOUBTFUL])
def test_what_can_change_without_a_write_is_refused(db, model, alive, said):
    """Other tables, subqueries, the time, and what nobody can look into."""
    with registered(model, name="doubtful", alive=alive, lookup="pk"):
        found = [message for message in check_guards(None) if message.id == "bloomguard.E013"]

    (message,) = found
    assert "can change without a write of the row" in message.msg
    assert re.search(said, message.msg)
    assert "constants" in message.hint


SOUND = [
    (Article, Q(deleted=False)),
    (Article, Q(slug__in={"a", "b"}) | ~Q(deleted=True)),
    (Article, Q(slug=Lower("slug"))),
    (Bundle, Q(name="x", size__gt=1)),
    (Exhibit, Q(shelf="x", label="y")),
    (Permission, Q(content_type__isnull=False)),
    (Permission, Q(content_type_id=3)),
    (Permission, Q(content_type__pk=3)),
    (User, Q(last_login__lt=datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))),
    (Article, Q()),
]


@pytest.mark.parametrize(("model", "alive"), SOUND, ids=range(len(SOUND)))
def test_columns_of_the_row_are_sound(model, alive):
    """Its parents' tables' too, and a foreign key's own column."""
    assert list(doubts(model, alive)) == []


def test_a_guards_definition_is_stable():
    """A filter that was built before a restart is asked after it."""
    one = make_guard(Article, alive=Q(slug__in={"a", "b", "c"}), name="one")
    other = make_guard(Article, alive=Q(slug__in={"c", "b", "a"}), name="one")

    assert one.definition == other.definition
    assert make_guard(Article, alive=Q(slug=object()), name="one").definition
