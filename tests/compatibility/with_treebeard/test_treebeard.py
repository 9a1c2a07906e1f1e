"""django-treebeard: trees of all three kinds, written by its own methods."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.urls import path

from tests.compatibility.rules import Page
from tests.support.guarding import urlconf

from .models import Member, Region, Topic

pytestmark = pytest.mark.django_db(transaction=True)


def topic(slug):
    return Topic.objects.get(slug=slug)


def region(slug):
    return Region.objects.get(slug=slug)


def member(slug):
    return Member.objects.get(slug=slug)


@pytest.fixture
def trees(rules):
    """One of each kind: a root ``a`` with the children ``b``, which has ``c``, and ``d``; and a root ``z``."""
    for model in (Topic, Region, Member):
        rows = model.objects
        order = {"sib_order": 1} if model is Member else {}
        a = rows.add_root({"slug": "a", **order})
        b = rows.add_child(a, {"slug": "b", **order})
        rows.add_child(b, {"slug": "c", **order})
        rows.add_child(rows.get(pk=a.pk), {"slug": "d", **order})
        rows.add_root({"slug": "z", **order})
    rules.rebuild()
    return rules


def adds_a_root():
    Topic.objects.add_root({"slug": "new"})


def adds_a_child():
    Topic.objects.add_child(topic("c"), {"slug": "new"})


def adds_an_instance():
    Topic.objects.add_child(topic("c"), instance=Topic(slug="new"))


def adds_a_sibling_to_the_left():
    """The paths of those to the right change."""
    Topic.objects.add_sibling(topic("b"), "left", {"slug": "new"})


def moves_a_leaf():
    Topic.objects.move(topic("d"), topic("c"), "last-child")


def moves_a_branch():
    """The paths of all descendants change."""
    Topic.objects.move(topic("b"), topic("z"), "first-child")


def moves_a_root_to_the_front():
    Topic.objects.move(topic("z"), topic("a"), "first-sibling")


def loads_in_bulk():
    Topic.objects.load_bulk([{"data": {"slug": "new"}, "children": [{"data": {"slug": "newer"}}]}], topic("b"))


def loads_by_bulk_create():
    data = [{"data": {"slug": f"new-{n}"}, "children": [{"data": {"slug": f"newer-{n}"}}]} for n in range(5)]
    Topic.objects.load_bulk(data, topic("b"), bulk_create=True, batch_size=2)


def loads_what_was_dumped():
    """With the primary keys that it had."""
    dumped = Topic.objects.dump_bulk(topic("b"))
    Topic.objects.get(slug="b").delete()
    Topic.objects.load_bulk(dumped, topic("a"), keep_ids=True)


def fixes_paths():
    """A path is broken, and mended."""
    Topic.objects.filter(slug="z").update(path="000Z")
    Topic.objects.fix_tree(fix_paths=True)


def deletes_a_branch():
    topic("b").delete()


def deletes_by_a_queryset():
    Topic.objects.filter(slug__in=["c", "z"]).delete()


def is_rolled_back():
    with transaction.atomic():
        Topic.objects.move(topic("b"), topic("z"), "first-child")
        Topic.objects.add_root({"slug": "new"})
        topic("a").delete()
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "write",
    [
        *(adds_a_root, adds_a_child, adds_an_instance, adds_a_sibling_to_the_left),
        *(moves_a_leaf, moves_a_branch, moves_a_root_to_the_front),
        *(loads_in_bulk, loads_by_bulk_create, loads_what_was_dumped, fixes_paths),
        *(deletes_a_branch, deletes_by_a_queryset, is_rolled_back),
    ],
)
def test_what_a_tree_of_paths_writes_is_followed(write, trees):
    """The guards of the primary key, of the slug and of the path itself, which a move rewrites."""
    with trees.follow("with_treebeard_topic"):
        write()

    assert Topic.objects.find_problems() == ([], [], [], [], [])


def nests_a_root():
    Region.objects.add_root({"slug": "new"})


def nests_a_child():
    Region.objects.add_child(region("c"), {"slug": "new"})


def nests_a_sibling():
    Region.objects.add_sibling(region("d"), "sorted-sibling", {"slug": "bb"})


def nests_a_branch_elsewhere():
    Region.objects.move(region("b"), region("z"), "sorted-child")


def nests_in_bulk():
    Region.objects.load_bulk([{"data": {"slug": "new"}, "children": [{"data": {"slug": "newer"}}]}], region("b"))


def deletes_a_nest():
    region("b").delete()


@pytest.mark.parametrize(
    "write", [nests_a_root, nests_a_child, nests_a_sibling, nests_a_branch_elsewhere, nests_in_bulk, deletes_a_nest]
)
def test_what_a_tree_of_nested_sets_writes_is_followed(write, trees):
    """Also by a guard of the edges, which each write shifts for many rows at once."""
    with trees.follow("with_treebeard_region"):
        write()


def lists_a_child():
    Member.objects.add_child(member("c"), {"slug": "new", "sib_order": 1})


def lists_a_sibling():
    Member.objects.add_sibling(member("d"), "left", {"slug": "new"})


def lists_a_branch_elsewhere():
    Member.objects.move(member("b"), member("z"), "first-child")


def lists_in_bulk():
    data = [{"data": {"slug": "new", "sib_order": 1}, "children": [{"data": {"slug": "newer", "sib_order": 1}}]}]
    Member.objects.load_bulk(data, member("b"))


def deletes_a_list():
    member("b").delete()


@pytest.mark.parametrize(
    "write", [lists_a_child, lists_a_sibling, lists_a_branch_elsewhere, lists_in_bulk, deletes_a_list]
)
def test_what_a_tree_of_references_writes_is_followed(write, trees):
    """Also by a guard of parent and slug together."""
    with trees.follow("with_treebeard_member"):
        write()


def test_nodes_are_looked_up(trees, settings):
    """By primary key, slug and path, through the managers of the trees and the querysets of their branches."""
    settings.ROOT_URLCONF = urlconf(
        path("topics/<int:pk>/", Page.as_view(model=Topic)),
        path("named/<slug:slug>/", Page.as_view(queryset=Topic.objects.get_queryset())),
        path("regions/<int:pk>/", Page.as_view(model=Region)),
    )

    for name in ("topic", "topic-by-slug", "topic-by-path"):
        trees.look_up(name, Topic.objects)
        trees.look_up(name, Topic.objects.get_tree())
    trees.look_up("region", Region.objects)
    trees.look_up("member-by-parent", Member.objects.exclude(parent=None))
    trees.visit("topic", "/topics/%s/")
    trees.visit("topic-by-slug", "/named/%s/")
    trees.visit("region", "/regions/%s/")
