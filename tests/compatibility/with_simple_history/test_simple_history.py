"""django-simple-history: a second table of what rows were, which may have what the guard knows to be gone."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import transaction
from django.urls import path, reverse
from django.utils import timezone
from simple_history.utils import bulk_create_with_history, bulk_update_with_history

from bloomguard import Verdict, guarded_lookups, registry
from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import Poll

pytestmark = pytest.mark.django_db(transaction=True)


def poll(slug):
    return Poll.objects.get(slug=slug)


@pytest.fixture
def site(rules):
    """The first of four was renamed from ``old-0``."""
    for n in range(4):
        Poll.objects.create(slug=f"old-{n}" if n == 0 else f"poll-{n}")
    first = poll("old-0")
    first.slug = "poll-0"
    first.save()
    rules.rebuild()
    return rules


def creates():
    Poll.objects.create(slug="new")


def creates_in_bulk():
    bulk_create_with_history([Poll(slug=f"new-{n}") for n in range(5)], Poll, batch_size=2)


def creates_in_bulk_what_may_exist():
    """Here the app reads the rows again."""
    bulk_create_with_history([Poll(slug="new", question="q"), Poll(slug="poll-1")], Poll, ignore_conflicts=True)


def renames_in_bulk():
    rows = list(Poll.objects.all())
    for row in rows:
        row.slug = f"renamed-{row.pk}"
    bulk_update_with_history(rows, Poll, ["slug"])


def renames_without_a_record():
    row = poll("poll-1")
    row.slug = "renamed"
    row.save_without_historical_record()


def goes_back_to_the_first_record():
    poll("poll-0").history.earliest().instance.save()
    assert poll("old-0").pk


def restores_what_was_deleted():
    """With its former primary key."""
    row = poll("poll-1")
    gone = row.pk
    row.delete()
    assert registry["poll"].verdict(gone) == Verdict.ABSENT
    Poll.history.filter(id=gone).latest().instance.save()
    assert poll("poll-1").pk == gone


def deletes():
    poll("poll-1").delete()


def deletes_by_a_queryset():
    Poll.objects.filter(slug__in=["poll-1", "poll-2"]).delete()


def is_rolled_back():
    with transaction.atomic():
        poll("poll-1").delete()
        bulk_create_with_history([Poll(slug="new")], Poll)
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(creates, creates_in_bulk, creates_in_bulk_what_may_exist, renames_in_bulk, renames_without_a_record),
        *(goes_back_to_the_first_record, restores_what_was_deleted, deletes, deletes_by_a_queryset, is_rolled_back),
    ],
)
def test_what_is_written_and_restored_is_followed(write, site):
    """Also by a guard of the records."""
    with site.follow("with_simple_history_poll"):
        write()


def test_the_command_that_makes_the_first_records_is_followed(site):
    Poll.history.all().delete()
    with site.follow("with_simple_history_historicalpoll"):
        call_command("populate_history", "--auto", verbosity=0)

    assert Poll.history.count() == 4


def test_the_command_that_deletes_old_records_fences_nothing(site):
    Poll.history.update(history_date="2000-01-01T00:00Z")
    with site.follow("with_simple_history_historicalpoll"):
        call_command("clean_old_history", "--auto", verbosity=0)

    assert Poll.history.count() == 0


def test_the_admin_shows_and_restores_a_record(site, staff):
    row = poll("poll-0")
    record = row.history.earliest()
    address = reverse("admin:with_simple_history_poll_simple_history", args=[row.pk, record.pk])

    assert b"old-0" in site.client.get(address).content
    with site.follow("with_simple_history_poll"):
        assert site.client.post(address, {"slug": "old-0", "question": "again"}).status_code == 302
    assert poll("old-0").pk == row.pk


def test_the_past_is_not_denied(site):
    """``as_of`` finds a row that is deleted today, in a request too: it asks the table of records."""
    row = poll("poll-1")
    before = timezone.now()
    gone = row.pk
    row.delete()

    assert registry["poll"].verdict(gone) == Verdict.ABSENT
    with guarded_lookups():
        assert not Poll.objects.filter(pk=gone).exists()
        assert Poll.history.as_of(before).get(id=gone).slug == "poll-1"
        assert Poll.history.as_of(before).get(slug="poll-1").pk == gone
        assert not Poll.history.as_of(timezone.now()).filter(id=gone).exists()
        assert Poll.history.filter(id=gone).latest().history_type == "-"


def test_rows_and_records_are_looked_up(site, settings):
    records = Poll.history.model
    settings.ROOT_URLCONF = urlconf(
        path("polls/<int:pk>/", Page.as_view(model=Poll)),
        path("named/<slug:slug>/", Page.as_view(model=Poll)),
        path("records/<int:pk>/", Page.as_view(model=records)),
    )

    site.look_up("poll", Poll.objects)
    site.look_up("poll-by-slug", Poll.objects)
    site.look_up("poll-history", records.objects)
    site.visit("poll", "/polls/%s/")
    site.visit("poll-by-slug", "/named/%s/")
    site.visit("poll-history", "/records/%s/")
