"""django-mptt: nested sets, whose edges it moves by SQL of its own."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.urls import path

from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import Genre, Shelf

pytestmark = pytest.mark.django_db(transaction=True)


def genre(slug):
    return Genre.objects.get(slug=slug)


def shelf(slug):
    return Shelf.objects.get(slug=slug)


@pytest.fixture
def trees(rules):
    """One of each model: a root ``a`` with the children ``b``, which has ``c``, and ``d``; and a root ``z``."""
    for model in (Genre, Shelf):
        a = model.objects.create(slug="a")
        b = model.objects.create(slug="b", parent=a)
        model.objects.create(slug="c", parent=b)
        model.objects.create(slug="d", parent=a)
        model.objects.create(slug="z")
    rules.rebuild()
    return rules


def creates_a_root():
    Genre.objects.create(slug="new")


def creates_a_child():
    """All edges to its right are shifted."""
    Genre.objects.create(slug="new", parent=genre("c"))


def inserts_a_node():
    Genre.objects.insert_node(Genre(slug="new"), genre("b"), position="last-child", save=True)


def saves_with_another_parent():
    row = genre("b")
    row.parent = genre("z")
    row.save()


def saves_as_a_root():
    row = genre("b")
    row.parent = None
    row.save()


def renames_within_the_order():
    row = genre("b")
    row.slug = "y"
    row.save()


def moves_within_a_tree():
    Genre.objects.move_node(genre("d"), genre("b"), "first-child")


def moves_to_another_tree():
    genre("b").move_to(genre("z"), "first-child")


def moves_a_root_below_another():
    Genre.objects.move_node(genre("z"), genre("c"), "last-child")


def updates_later():
    with transaction.atomic(), Genre.objects.delay_mptt_updates():
        Genre.objects.create(slug="new", parent=genre("d"))
        genre("b").move_to(genre("z"))


def rebuilds_after_bulk_create():
    with transaction.atomic(), Genre.objects.disable_mptt_updates():
        Genre.objects.bulk_create(
            Genre(slug=f"new-{n}", parent=genre("d"), lft=0, rght=0, tree_id=0, level=0) for n in range(5)
        )
    Genre.objects.rebuild()


def rebuilds_a_tree():
    Genre.objects.update(lft=1, rght=2)
    Genre.objects.partial_rebuild(genre("a").tree_id)


def builds_nodes_for_bulk_create():
    data = {"slug": "new", "children": [{"slug": "newer"}, {"slug": "newest"}]}
    Genre.objects.bulk_create(Genre.objects.build_tree_nodes(data, target=genre("b"), position="last-child"))


def deletes_a_branch():
    genre("b").delete()


def deletes_by_a_queryset():
    Genre.objects.get_queryset_descendants(Genre.objects.filter(slug="a")).delete()


def is_rolled_back():
    with transaction.atomic():
        Genre.objects.create(slug="new", parent=genre("c"))
        genre("b").move_to(genre("z"))
        genre("d").delete()
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(creates_a_root, creates_a_child, inserts_a_node),
        *(saves_with_another_parent, saves_as_a_root, renames_within_the_order),
        *(moves_within_a_tree, moves_to_another_tree, moves_a_root_below_another),
        *(updates_later, rebuilds_after_bulk_create, rebuilds_a_tree, builds_nodes_for_bulk_create),
        *(deletes_a_branch, deletes_by_a_queryset, is_rolled_back),
    ],
)
def test_what_a_tree_writes_is_followed(write, trees):
    """Its SQL moves edges alone, so it fences no guard of the primary key, the slug or the parent."""
    with trees.follow("with_mptt_genre"):
        write()


def shifts_edges():
    Shelf.objects.create(slug="new", parent=shelf("c"))


def moves_a_shelf():
    Shelf.objects.move_node(shelf("b"), shelf("z"), "first-child")


def deletes_a_shelf():
    shelf("b").delete()


@pytest.mark.parametrize("write", [shifts_edges, moves_a_shelf, deletes_a_shelf])
def test_only_a_guard_of_the_edges_is_fenced(write, trees):
    """What looks up ``tree_id``, ``lft``, ``rght`` or ``level`` cannot follow the SQL; others of the table can."""
    with trees.follow("with_mptt_shelf", fenced=("shelf-in-tree",)):
        write()


def test_nodes_are_looked_up(trees, settings):
    """By primary key, slug, and parent with slug, through the manager of the tree and the querysets of a branch."""
    settings.ROOT_URLCONF = urlconf(
        path("genres/<int:pk>/", Page.as_view(model=Genre)), path("named/<slug:slug>/", Page.as_view(model=Genre))
    )

    for name in ("genre", "genre-by-slug"):
        trees.look_up(name, Genre.objects)
        trees.look_up(name, Genre.objects.get_queryset_descendants(Genre.objects.all(), include_self=True))
    trees.look_up("genre-by-parent", Genre.objects)
    trees.visit("genre", "/genres/%s/")
    trees.visit("genre-by-slug", "/named/%s/")
