"""The methods whose queries no guard answers.

For a row that the project has, such as the target of its foreign key, the database is asked. And the database alone
decides what a method that writes will write: a SELECT that it sends first must not miss a row that the filter lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.apps import apps
from django.db.models import Model, QuerySet
from django.db.models.fields import related_descriptors as related
from django.db.models.sql.compiler import SQLUpdateCompiler

from .context import contexts

#: Their async versions call them.
_METHODS: tuple[tuple[Any, str], ...] = (
    (related.ForwardManyToOneDescriptor, "get_object"),
    (Model, "refresh_from_db"),
    (Model, "save_base"),
    (Model, "delete"),
    (QuerySet, "bulk_create"),
    (QuerySet, "bulk_update"),
    (QuerySet, "delete"),
    (QuerySet, "get_or_create"),
    (QuerySet, "update"),
    (QuerySet, "update_or_create"),
    (SQLUpdateCompiler, "pre_sql_setup"),  # reads the rows of an UPDATE of several tables, also for `_update`
)
#: Of related managers, whose classes are made when they are needed.
_OF_MANAGERS = ("add", "clear", "remove", "set")


def connect() -> None:
    """Wrap the methods; once."""
    setup: Any = SQLUpdateCompiler.pre_sql_setup
    if hasattr(setup, "of_bloomguard"):
        return
    for owner, name in _METHODS:
        setattr(owner, name, _unguarded(getattr(owner, name)))
    setup = SQLUpdateCompiler.pre_sql_setup
    setup.of_bloomguard = True
    for name in ("create_reverse_many_to_one_manager", "create_forward_many_to_many_manager"):
        setattr(related, name, _with_unguarded_methods(getattr(related, name)))
    if apps.is_installed("django.contrib.contenttypes"):
        from django.contrib.contenttypes import fields

        name = "create_generic_related_manager"
        setattr(fields, name, _with_unguarded_methods(getattr(fields, name)))


def _unguarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``method`` so that guards answer none of its queries."""

    @wraps(method)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        before = contexts.get()
        if before is None:
            return method(*args, **kwargs)
        contexts.set(None)
        try:
            return method(*args, **kwargs)
        finally:
            contexts.set(before)

    return fetch


def _with_unguarded_methods(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``make``, which makes the class of a related manager."""

    @wraps(make)
    def make_manager(*args: Any, **kwargs: Any) -> Any:
        manager = make(*args, **kwargs)
        for name in _OF_MANAGERS:
            if name in vars(manager):
                setattr(manager, name, _unguarded(vars(manager)[name]))
        return manager

    return make_manager
