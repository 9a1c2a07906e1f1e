from django.db import models
from treebeard.al_tree import AL_Node
from treebeard.mp_tree import MP_Node
from treebeard.ns_tree import NS_Node


class Topic(MP_Node):
    """A tree of materialized paths."""

    slug = models.SlugField(unique=True)


class Region(NS_Node):
    """A tree of nested sets."""

    slug = models.SlugField(unique=True)
    node_order_by = ["slug"]


class Member(AL_Node):
    """A tree of references to parents."""

    parent = models.ForeignKey("self", models.CASCADE, null=True, related_name="members")
    sib_order = models.PositiveIntegerField()
    slug = models.SlugField(unique=True)
