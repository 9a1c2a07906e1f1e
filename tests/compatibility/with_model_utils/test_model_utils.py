"""django-model-utils: soft deletes, statuses, tokens, and managers for inheritance and joins."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.urls import path

from bloomguard import Verdict, guarded_lookups, registry
from tests.compatibility.rules import Page, sent
from tests.support.guarding import urlconf

from .models import Memo, Theatre, Venue

pytestmark = pytest.mark.django_db(transaction=True)


def memo(slug):
    return Memo.all_objects.get(slug=slug)


@pytest.fixture
def site(rules):
    for n in range(6):
        Memo.all_objects.create(slug=f"memo-{n}", status="published" if n % 2 else "draft", is_removed=n == 5)
    Venue.objects.create(name="square")
    Theatre.objects.create(name="opera")
    rules.rebuild()
    return rules


def creates_a_memo():
    Memo.available_objects.create(slug="new")


def creates_memos_in_bulk():
    Memo.all_objects.bulk_create(
        Memo(slug=f"new-{n}", status=status) for n in range(3) for status in ("draft", "published")
    )


def deletes_softly():
    memo("memo-1").delete()


def deletes_softly_by_a_queryset():
    Memo.available_objects.filter(slug__in=["memo-1", "memo-2"]).delete()


def brings_back():
    row = memo("memo-5")
    row.is_removed = False
    row.save()


def brings_back_by_update():
    Memo.all_objects.filter(is_removed=True).update(is_removed=False)


def deletes_for_good():
    memo("memo-1").delete(soft=False)


def deletes_rows_for_good():
    Memo.all_objects.filter(slug__in=["memo-1", "memo-5"]).delete()


def publishes():
    """``save(update_fields=...)`` writes the time of the change too."""
    row = memo("memo-0")
    row.status = "published"
    row.save(update_fields=["status"])


def retracts_in_bulk():
    rows = list(Memo.published.all())
    for row in rows:
        row.status = "draft"
    Memo.all_objects.bulk_update(rows, ["status"])


def has_another_token():
    row = memo("memo-1")
    row.token = "another"
    assert row.tracker.has_changed("token")
    row.save()


def deletes_softly_and_rolls_back():
    with transaction.atomic():
        memo("memo-1").delete()
        Memo.available_objects.create(slug="new")
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(creates_a_memo, creates_memos_in_bulk, deletes_softly, deletes_softly_by_a_queryset),
        *(brings_back, brings_back_by_update, deletes_for_good, deletes_rows_for_good),
        *(publishes, retracts_in_bulk, has_another_token, deletes_softly_and_rolls_back),
    ],
)
def test_what_is_written_is_followed(write, site):
    """By the guards of the rows that are not removed, of those that are published, and of all tokens."""
    with site.follow("with_model_utils_memo"):
        write()


def creates_a_child():
    Theatre.objects.create(name="new")


def deletes_a_child():
    Venue.objects.select_subclasses().get(name="opera").delete()


@pytest.mark.parametrize("write", [creates_a_child, deletes_a_child])
def test_what_a_child_of_a_table_writes_is_followed(write, site):
    with site.follow("with_model_utils_venue", "with_model_utils_theatre"):
        write()


def test_a_join_through_a_temporary_table_fences_nothing(site):
    """``JoinQueryset`` makes one, by several statements in one text, which SQLite does not take."""
    if connection.vendor == "sqlite":
        pytest.skip("it needs a driver that takes several statements at once")
    with site.follow():
        assert [row.name for row in Venue.joining.filter(name="opera").join()] == ["opera"]


def test_rows_are_looked_up(site, settings):
    """Through the managers that leave out removed rows, and those that find children."""
    settings.ROOT_URLCONF = urlconf(
        path("memos/<uuid:pk>/", Page.as_view(queryset=Memo.available_objects.all())),
        path("tokens/<str:slug>/", Page.as_view(queryset=Memo.all_objects.all(), slug_field="token")),
        path("venues/<int:pk>/", Page.as_view(queryset=Venue.objects.select_subclasses())),
        path("theatres/<int:pk>/", Page.as_view(model=Theatre)),
    )

    site.look_up("memo", Memo.available_objects)
    site.look_up("memo-by-token", Memo.all_objects)
    site.look_up("memo-by-slug", Memo.published.filter(is_removed=False))
    site.look_up("venue", Venue.objects)
    site.look_up("venue", Venue.objects.select_subclasses())
    site.look_up("theatre", Theatre.objects)
    site.visit("memo", "/memos/%s/")
    site.visit("memo-by-token", "/tokens/%s/")
    site.visit("venue", "/venues/%s/")
    site.visit("theatre", "/theatres/%s/")


def test_a_removed_row_is_absent_for_the_public_alone(site):
    """A query for all rows finds it, and is sent."""
    memo("memo-1").delete()
    gone = memo("memo-1").pk

    assert registry["memo"].verdict(gone) == Verdict.ABSENT
    with guarded_lookups(), sent("SELECT", table="with_model_utils_memo") as statements:
        assert not Memo.available_objects.filter(pk=gone).exists()
        assert statements == []
        assert Memo.all_objects.get(pk=gone).is_removed
        assert len(statements) == 1
