"""django-reversion: rows that come back as they were, also those that were deleted."""

from __future__ import annotations

import pytest
import reversion
from django.core.management import call_command
from django.db.models.signals import post_save
from django.http import HttpResponse
from django.urls import path, reverse
from reversion.models import Version
from reversion.utils import mute_signals

from bloomguard import Verdict, registry
from tests.compatibility.rules import Page
from tests.support.guarding import registered, urlconf

from .models import Essay, Remark

pytestmark = pytest.mark.django_db(transaction=True)


def essay(slug):
    return Essay.objects.get(slug=slug)


def versions(row):
    """From the newest to the oldest."""
    return list(Version.objects.get_for_object(row))


@pytest.fixture
def site(rules):
    """Three essays with a remark each; the first was renamed from ``old-0`` and had a second remark."""
    for n in range(3):
        with reversion.create_revision():
            row = Essay.objects.create(slug=f"old-{n}" if n == 0 else f"essay-{n}")
            Remark.objects.create(essay=row, number=1)
    first = essay("old-0")
    with reversion.create_revision():
        first.slug = "essay-0"
        first.save()
    Remark.objects.create(essay=first, number=2)
    rules.rebuild()
    return rules


def creates_in_a_revision():
    with reversion.create_revision():
        Remark.objects.create(essay=Essay.objects.create(slug="new"), number=1)


def creates_in_bulk_and_adds_to_the_revision():
    with reversion.create_revision(manage_manually=True):
        for row in Essay.objects.bulk_create(Essay(slug=f"new-{n}") for n in range(3)):
            reversion.add_to_revision(row)


def reverts_a_version():
    """The slug is the old one again."""
    versions(essay("essay-0"))[-1].revert()
    assert essay("old-0").pk


def reverts_a_revision():
    """With the rows that it follows."""
    Remark.objects.filter(essay__slug="essay-1").delete()
    versions(essay("essay-1"))[0].revision.revert()
    assert Remark.objects.get(essay__slug="essay-1")


def reverts_a_revision_and_deletes_what_came_later():
    versions(essay("essay-0"))[-1].revision.revert(delete=True)
    assert Remark.objects.filter(essay__slug="old-0").count() == 1


def recovers_what_was_deleted():
    """With its former primary key."""
    row = essay("essay-1")
    gone = row.pk
    row.delete()
    assert registry["essay-by-slug"].verdict("essay-1") == Verdict.ABSENT
    Version.objects.get_deleted(Essay).get(object_id=str(gone)).revision.revert()
    assert essay("essay-1").pk == gone


def deletes():
    with reversion.create_revision():
        essay("essay-1").delete()


def fails_in_a_revision():
    @reversion.create_revision()
    def fail():
        essay("essay-1").delete()
        Essay.objects.create(slug="new")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize(
    "write",
    [
        *(creates_in_a_revision, creates_in_bulk_and_adds_to_the_revision, reverts_a_version, reverts_a_revision),
        *(reverts_a_revision_and_deletes_what_came_later, recovers_what_was_deleted, deletes, fails_in_a_revision),
    ],
)
def test_what_is_written_and_reverted_is_followed(write, site):
    """Also by a guard of the versions themselves."""
    tables = ["with_reversion_remark"] if "revision" in write.__name__ and "revert" in write.__name__ else []
    with site.follow(*tables or ["with_reversion_essay"]):
        write()


def test_first_versions_of_all_rows_are_followed(site):
    Version.objects.all().delete()
    with site.follow("reversion_version"):
        call_command("createinitialrevisions", "with_reversion")

    assert Version.objects.get_for_model(Essay).count() == 3


def test_what_the_middleware_wraps_is_followed(site, settings):
    """A POST is one revision."""

    def create(request):
        return HttpResponse(Essay.objects.create(slug="new").pk)

    settings.ROOT_URLCONF = urlconf(path("new/", create))

    with site.follow("with_reversion_essay", "reversion_version"):
        assert site.client.post("/new/").status_code == 200


def test_the_admin_shows_and_recovers_what_was_deleted(site, staff):
    """The page reverts the row, reads it and rolls all of that back, with every signal of Django muted."""
    row = essay("essay-1")
    gone = row.pk
    row.delete()
    site.rebuild()
    address = reverse("admin:with_reversion_essay_recover", args=[Version.objects.get_deleted(Essay).get().pk])

    with site.follow("with_reversion_essay"):
        page = site.client.get(address)
    assert page.status_code == 200
    assert b"essay-1" in page.content
    assert not Essay.objects.filter(pk=gone).exists()
    with site.follow("with_reversion_essay"):
        assert site.client.post(address, {"slug": "essay-1", "text": "again"}).status_code == 302
    assert essay("essay-1").pk == gone


def test_a_guard_that_follows_signals_misses_what_is_saved_while_they_are_muted(site):
    """As the page above does it for all threads of a process; the other guards do not depend on signals."""
    with registered(Essay, name="by-signals", sync="signals") as guard:
        site.build(guard.name)
        Essay.objects.create(slug="heard")
        with mute_signals(post_save):
            Essay.objects.create(slug="unheard")

        assert guard.verdict(essay("heard").pk) == Verdict.MAYBE
        assert guard.verdict(essay("unheard").pk) == Verdict.ABSENT
    site.hold()


def test_rows_and_versions_are_looked_up(site, settings):
    settings.ROOT_URLCONF = urlconf(
        path("essays/<int:pk>/", Page.as_view(model=Essay)),
        path("named/<slug:slug>/", Page.as_view(model=Essay)),
        path("versions/<int:pk>/", Page.as_view(model=Version)),
    )

    site.look_up("essay", Essay.objects)
    site.look_up("essay-by-slug", Essay.objects)
    site.look_up("remark", Remark.objects)
    site.look_up("version", Version.objects.all())
    site.visit("essay", "/essays/%s/")
    site.visit("essay-by-slug", "/named/%s/")
    site.visit("version", "/versions/%s/")
