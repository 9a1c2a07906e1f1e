"""django-guardian: permissions on single rows, for users and groups."""

from __future__ import annotations

import pytest
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Group, User
from django.urls import path
from guardian.mixins import PermissionRequiredMixin
from guardian.models import UserObjectPermission
from guardian.shortcuts import assign_perm, clear_ct_cache, get_objects_for_group, get_objects_for_user, remove_perm
from guardian.utils import clean_orphan_obj_perms

from bloomguard import guarded_lookups, registry
from bloomguard.testing import assert_blocked
from tests.compatibility.rules import Page, keys_of, sent
from tests.support.guarding import urlconf

from .models import Contract, ContractUserObjectPermission, Document

pytestmark = pytest.mark.django_db(transaction=True)


class Readers(PermissionRequiredMixin, Page):
    """Reads the row, and asks whether the user may see it."""

    model = Document
    permission_required = "with_guardian.view_document"
    return_403 = True


def document(slug):
    return Document.objects.get(slug=slug)


def reader():
    return User.objects.get(username="reader")


@pytest.fixture
def site(rules):
    """Of four documents and contracts, the reader may see those whose number is even, and the group the others."""
    from django.apps import apps

    clear_ct_cache()  # as Django's own: after each test the database is emptied
    create_permissions(apps.get_app_config("with_guardian"), verbosity=0)
    user, group = User.objects.create_user("reader"), Group.objects.create(name="readers")
    for n in range(4):
        row, contract = Document.objects.create(slug=f"document-{n}"), Contract.objects.create(slug=f"contract-{n}")
        assign_perm("view_document", group if n % 2 else user, row)
        assign_perm("view_contract", user, contract)
    rules.rebuild()
    return rules


def creates_with_a_permission():
    assign_perm("view_document", reader(), Document.objects.create(slug="new"))


def gives_permissions_on_a_queryset():
    assign_perm("change_document", reader(), Document.objects.all())


def gives_permissions_on_a_list():
    assign_perm("change_document", Group.objects.get(), list(Document.objects.all()))


def takes_a_permission():
    remove_perm("view_document", reader(), document("document-0"))


def deletes_with_its_permissions():
    """The app removes these afterwards, if asked."""
    document("document-0").delete()
    assert clean_orphan_obj_perms() == 1


def deletes_what_a_user_may_see():
    get_objects_for_user(reader(), "with_guardian.view_document").delete()


@pytest.mark.parametrize(
    ("write", "table"),
    [
        (creates_with_a_permission, "with_guardian_document"),
        (gives_permissions_on_a_queryset, "guardian_userobjectpermission"),
        (gives_permissions_on_a_list, "guardian_groupobjectpermission"),
        (takes_a_permission, "guardian_userobjectpermission"),
        (deletes_with_its_permissions, "with_guardian_document"),
        (deletes_what_a_user_may_see, "with_guardian_document"),
    ],
)
def test_rows_and_permissions_are_written(write, table, site):
    """Permissions of other tables change nothing."""
    with site.follow(table):
        write()


def gives_a_permission_by_foreign_key():
    assign_perm("change_contract", reader(), Contract.objects.get(slug="contract-1"))


def deletes_with_the_permissions_that_refer_to_it():
    Contract.objects.get(slug="contract-1").delete()
    assert ContractUserObjectPermission.objects.count() == 3


@pytest.mark.parametrize("write", [gives_a_permission_by_foreign_key, deletes_with_the_permissions_that_refer_to_it])
def test_permissions_by_foreign_key_are_written(write, site):
    with site.follow("with_guardian_contractuserobjectpermission"):
        write()


def test_rows_are_looked_up_among_those_that_somebody_may_see(site):
    """The guard answers for a row that does not exist; whether somebody may see one, the database says."""
    seen = get_objects_for_user(reader(), "with_guardian.view_document")
    absent = site.missing(registry["document"])

    with guarded_lookups():
        assert seen.get(slug="document-0").pk
        assert not seen.filter(slug="document-1").exists()
        assert get_objects_for_group(Group.objects.get(), "with_guardian.view_document").get(slug="document-1").pk
        with sent("SELECT", table="with_guardian_document") as statements:
            assert seen.filter(pk=absent).first() is None
        assert statements == []
        assert reader().has_perm("with_guardian.view_document", document("document-0"))
    site.look_up("document", Document.objects)
    site.look_up("document-by-slug", Document.objects)
    site.look_up("contract", get_objects_for_user(reader(), "with_guardian.view_contract"))


def test_a_page_for_some_readers_answers_as_ever(site, settings):
    """A stranger gets 403, a reader the page, and both 404 for what does not exist, without a query for it."""
    settings.ROOT_URLCONF = urlconf(path("documents/<int:pk>/", Readers.as_view()))
    absent = site.missing(registry["document"])
    assert_blocked(site.client, f"/documents/{absent}/")
    assert {site.client.get(f"/documents/{pk}/").status_code for pk in keys_of(registry["document"])} == {403}

    site.client.force_login(reader())

    assert site.client.get(f"/documents/{document('document-0').pk}/").status_code == 200
    assert site.client.get(f"/documents/{document('document-1').pk}/").status_code == 403
    with sent("SELECT", table="with_guardian_document") as statements:
        assert site.client.get(f"/documents/{absent}/").status_code == 404
    assert statements == []
    assert UserObjectPermission.objects.count() == 2
