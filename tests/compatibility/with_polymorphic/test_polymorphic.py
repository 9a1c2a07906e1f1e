"""django-polymorphic: tables of parents and children, and querysets that return rows of the children."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.urls import path

from bloomguard import guarded_lookups
from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import ArtProject, Project, ResearchProject

pytestmark = pytest.mark.django_db(transaction=True)


def project(slug):
    return Project.objects.get(slug=slug)


@pytest.fixture
def site(rules):
    for n in range(3):
        Project.objects.create(slug=f"project-{n}")
        ArtProject.objects.create(slug=f"art-{n}", artist="someone")
        ResearchProject.objects.create(slug=f"research-{n}")
    rules.rebuild()
    return rules


def creates_a_parent():
    Project.objects.create(slug="new")


def creates_a_child():
    ArtProject.objects.create(slug="new")


def gets_or_creates_a_child():
    assert not ArtProject.objects.get_or_create(slug="art-1")[1]
    assert ArtProject.objects.get_or_create(slug="new")[1]


def creates_parents_in_bulk():
    Project.objects.bulk_create(Project(slug=f"new-{n}") for n in range(3))


def makes_a_child_of_a_parent():
    """``create_from_super`` writes the child's table alone."""
    row = ArtProject.objects.create_from_super(project("project-1"), artist="someone")
    assert type(project("project-1")) is ArtProject
    assert row.slug == "project-1"


def makes_a_parent_of_a_child():
    project("art-1").delete(keep_parents=True)
    assert type(project("art-1")) is Project


def renames_through_the_parent():
    Project.objects.non_polymorphic().filter(slug="art-1").update(slug="renamed")


def renames_through_the_child():
    ArtProject.objects.filter(slug="art-1").update(slug="renamed", artist="someone else")


def saves_a_child():
    row = project("art-1")
    row.slug = "renamed"
    row.save()


def deletes_a_child():
    project("art-1").delete()


def deletes_what_is_of_one_kind():
    Project.objects.instance_of(ArtProject).delete()


def deletes_without_polymorphism():
    Project.objects.non_polymorphic().filter(slug__in=["art-1", "project-1", "research-1"]).delete()


def is_rolled_back():
    with transaction.atomic():
        ArtProject.objects.create(slug="new")
        project("art-1").delete()
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(creates_a_parent, creates_a_child, gets_or_creates_a_child, creates_parents_in_bulk),
        *(makes_a_child_of_a_parent, makes_a_parent_of_a_child),
        *(renames_through_the_parent, renames_through_the_child, saves_a_child),
        *(deletes_a_child, deletes_what_is_of_one_kind, deletes_without_polymorphism, is_rolled_back),
    ],
)
def test_what_parents_and_children_write_is_followed(write, site):
    """By the guards of the parent, and by that of the child."""
    with site.follow("with_polymorphic_project"):
        write()


def test_rows_are_looked_up(site, settings):
    """Through all kinds of its querysets; each row as what it is."""
    settings.ROOT_URLCONF = urlconf(
        path("projects/<int:pk>/", Page.as_view(model=Project)),
        path("named/<slug:slug>/", Page.as_view(model=Project)),
        path("art/<int:pk>/", Page.as_view(model=ArtProject)),
    )

    for name in ("project", "project-by-slug"):
        site.look_up(name, Project.objects)
        site.look_up(name, Project.objects.non_polymorphic())
        site.look_up(name, Project.objects.instance_of(Project, ArtProject))
    site.look_up("art-project", ArtProject.objects)
    with guarded_lookups():
        assert type(Project.objects.get(slug="art-1")) is ArtProject
        assert type(Project.objects.non_polymorphic().get(slug="art-1")) is Project
        assert not ArtProject.objects.filter(slug="research-1").exists()
    site.visit("project", "/projects/%s/")
    site.visit("project-by-slug", "/named/%s/")
    site.visit("art-project", "/art/%s/")
