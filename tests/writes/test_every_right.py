"""Whatever a role of PostgreSQL may do without guards, it may do with them: a guard that cannot follow is fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Value

from bloomguard.rebuild import Rebuild
from tests.shop.models import Article
from tests.support.guarding import registered

from .raw.sending import execute, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True, databases="__all__"), on_postgresql]

#: What the role may do with the rows of ``shop_article``, whose columns are ``id``, ``slug`` and ``deleted``.
RIGHTS = {
    "everything": "SELECT, INSERT, UPDATE, DELETE",
    "insert alone": "INSERT",
    "insert, read the ID": "INSERT, SELECT (id)",
    "insert, read all but the slug": "INSERT, SELECT (id, deleted)",
    "insert and read": "INSERT, SELECT",
    "update alone": "UPDATE",
    "update, read the ID": "UPDATE, SELECT (id)",
    "update, read all but the slug": "UPDATE, SELECT (id, deleted)",
    "update, read the slug": "UPDATE, SELECT (slug)",
    "update one column and read": "UPDATE (deleted), SELECT",
    "update and read": "UPDATE, SELECT",
    "delete alone": "DELETE",
    "delete, read the ID": "DELETE, SELECT (id)",
    "delete, read the slug": "DELETE, SELECT (slug)",
    "delete and read": "DELETE, SELECT",
    "insert, update, read all but the slug": "INSERT, UPDATE, SELECT (id, deleted)",
    "all but update": "SELECT, INSERT, DELETE",
    "all but read": "INSERT, UPDATE, DELETE",
}


def rows() -> Any:
    return Article.objects.order_by()


WRITES: dict[str, Callable[[], object]] = {
    "create": lambda: rows().create(slug="new"),
    "create by an expression": lambda: rows().create(slug=Value("new")),
    "bulk_create": lambda: rows().bulk_create([Article(slug="new"), Article(slug=Value("newer"))]),
    "ignore_conflicts": lambda: rows().bulk_create([Article(slug="a"), Article(slug="new")], ignore_conflicts=True),
    "upsert": lambda: rows().bulk_create(
        [Article(slug="a", deleted=True)], update_conflicts=True, unique_fields=["slug"], update_fields=["deleted"]
    ),
    "update all": lambda: rows().update(slug=Value("new")),
    "update all, another column": lambda: rows().update(deleted=True),
    "update by the ID": lambda: rows().filter(pk=1).update(slug="new"),
    "update by another column": lambda: rows().filter(deleted=False).update(slug="new"),
    "save": lambda: Article(pk=1, slug="new").save(force_update=True),
    "save one field": lambda: Article(pk=1, slug="new").save(update_fields=["slug"]),
    "bulk_update": lambda: rows().bulk_update([Article(pk=1, slug="new")], ["slug"]),
    "delete all": lambda: rows()._raw_delete("postgresql"),
    "delete by the ID": lambda: rows().filter(pk=1)._raw_delete("postgresql"),
    "delete by the slug": lambda: rows().filter(slug="a")._raw_delete("postgresql"),
    "delete": lambda: rows().filter(pk=1).delete(),
    "delete the instance": lambda: Article(pk=1).delete(),
}


@pytest.fixture
def role(role: str) -> str:
    """One that may read and delete the rows that a deletion looks for."""
    execute(f"GRANT SELECT, UPDATE, DELETE ON shop_review TO {role}")
    return role


def outcome(role: str, write: Callable[[], object]) -> tuple[str, list[tuple[str, bool]]]:
    """The error that the role got, and the rows after its write."""
    execute(f"SET ROLE {role}")
    error = ""
    try:
        with transaction.atomic("postgresql"):
            write()
    except DatabaseError as raised:
        error = type(raised).__name__
    execute("RESET ROLE")
    return error, sorted(rows().values_list("slug", "deleted"))


def begin() -> None:
    """One row, and the next ID is 2."""
    execute("DELETE FROM shop_article")
    rows().create(pk=1, slug="a")
    execute("ALTER SEQUENCE shop_article_id_seq RESTART WITH 2")


@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS)
def test_a_role_may_write_with_guards_what_it_may_write_without(role, fresh, clock, rights):
    execute(f"GRANT {rights} ON shop_article TO {role}")
    without = {}
    for name, write in WRITES.items():
        begin()
        without[name] = outcome(role, write)
    for kind in ("bloom", "cuckoo"):
        with registered(Article, name="by-slug", lookup="slug", filter=kind) as guard:
            for name, write in WRITES.items():
                begin()
                if guard.filter_existing(["absent"]):
                    Rebuild(guard, sleep=clock.sleep, probes=100).run()
                assert guard.filter_existing(["a", "absent"]) == ["a"]

                error, after = outcome(role, write)

                assert (error, after) == without[name], (kind, name)
                slugs = [slug for slug, _ in after]
                assert guard.filter_existing(slugs) == slugs, (kind, name)


def test_each_write_is_allowed_by_some_of_these_rights_and_forbidden_by_others(role):
    """Else the other test would compare errors alone."""
    allowed = dict.fromkeys(WRITES, 0)
    some = ("everything", "insert alone", "delete alone")
    for name in some:
        execute(f"REVOKE ALL ON shop_article FROM {role}")
        execute(f"GRANT {RIGHTS[name]} ON shop_article TO {role}")
        for write_name, write in WRITES.items():
            begin()
            allowed[write_name] += not outcome(role, write)[0]
    assert all(0 < number < len(some) for number in allowed.values()), allowed
