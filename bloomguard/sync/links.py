"""How the rows of a model hang together with those of its parents' tables (multi-table inheritance)."""

from __future__ import annotations

from django.db.models import Model


def link(model: type[Model], parent: type[Model]) -> str:
    """The look-up from ``model`` to the primary key of ``parent``: a parent of it, what its proxy stands for, itself.

    With two parents, the rows share the first one's primary key alone; the other hangs on a column of its own.
    """
    concrete = parent._meta.concrete_model
    if concrete is None or not issubclass(model, concrete) or model._meta.concrete_model is concrete:
        return "pk"
    path = []
    for step in model._meta.get_base_chain(concrete):
        field = model._meta.get_ancestor_link(step)
        if field is not None:  # none where a proxy stands between
            path.append(field.name)
        model = step
    return "__".join(path) or "pk"
