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

from .context import unguarded

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
        setattr(owner, name, unguarded(getattr(owner, name)))
    setup = SQLUpdateCompiler.pre_sql_setup
    setup.of_bloomguard = True
    for name in ("create_reverse_many_to_one_manager", "create_forward_many_to_many_manager"):
        setattr(related, name, _unguarding(getattr(related, name)))
    if apps.is_installed("django.contrib.contenttypes"):
        from django.contrib.contenttypes import fields

        name = "create_generic_related_manager"
        setattr(fields, name, _unguarding(getattr(fields, name)))


def _unguarding(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def make_manager(*args: Any, **kwargs: Any) -> Any:
        manager = make(*args, **kwargs)
        for name in _OF_MANAGERS:
            if name in vars(manager):
                setattr(manager, name, unguarded(vars(manager)[name]))
        return manager

    return make_manager
