"""A cache of query results in the project: a filter gets its keys from the database, whatever the cache has kept."""

from __future__ import annotations

import functools

import pytest
from django.db.models import QuerySet
from django.db.models.sql.compiler import SQLCompiler, SQLInsertCompiler, SQLUpdateCompiler

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Bundle, Place, Product
from tests.support import database
from tests.support.guarding import registered
from tests.writes.test_unknown_guards import execute

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def like_cachalot(patch, kept):
    """Results of a compiler, also those of an iterator; no write is noticed."""
    original = SQLCompiler.execute_sql

    @functools.wraps(original)
    def execute_sql(compiler, *args, **kwargs):
        if isinstance(compiler, (SQLInsertCompiler, SQLUpdateCompiler)) or compiler.query.select_for_update:
            return original(compiler, *args, **kwargs)
        key = compiler.using, str(compiler.as_sql())
        if key not in kept:
            found = original(compiler, *args, **kwargs)
            kept[key] = found if found is None or isinstance(found, tuple) else list(found)
        return kept[key]

    patch.setattr(SQLCompiler, "execute_sql", execute_sql)


def like_cacheops(patch, kept):
    """Results and counts of a queryset."""
    fetch, count = QuerySet._fetch_all, QuerySet.count

    def _fetch_all(rows):
        if rows._result_cache is None and not rows.query.select_for_update:
            key = rows.db, str(rows.query)
            if key not in kept:
                kept[key] = list(rows._iterable_class(rows))
            rows._result_cache = kept[key]
        fetch(rows)

    def cached_count(rows):
        key = "count", rows.db, str(rows.query)
        return kept.setdefault(key, count(rows))

    patch.setattr(QuerySet, "_fetch_all", _fetch_all)
    patch.setattr(QuerySet, "count", cached_count)


@pytest.fixture(params=[like_cachalot, like_cacheops])
def cached(request, each_database, fresh, clock, monkeypatch):
    """From now on, queries get what the first one of their kind got."""
    kept = {}
    request.param(monkeypatch, kept)
    return kept


def test_a_rebuild_reads_the_rows_of_today(cached, clock):
    """Rows that the cache has not been told of, as after an `UPDATE` or another program's writes."""
    Place.objects.create(country="de", slug="old")
    guard = registry["place"]
    Rebuild(guard, sleep=clock.sleep).run()
    execute("INSERT INTO shop_place (country, slug) VALUES ('fr', 'new')")  # which fences
    Rebuild(guard, sleep=clock.sleep).run()

    assert guard.verdict(("fr", "new")) is Verdict.MAYBE
    assert guard.verdict(("fr", "gone")) is Verdict.ABSENT


@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
def test_a_key_that_is_read_back_is_that_of_the_last_write(cached, clock, filter):
    """The rows of the parent are written, the guard's key is looked up by the child."""
    bundle = Bundle.objects.create(name="zero")
    with registered(Bundle, name="thing", lookup="name", filter=filter) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for name in ("one", "two", "three"):
            Product.objects.using(database.current).filter(pk=bundle.pk).update(name=name)

            assert guard.verdict(name) is Verdict.MAYBE


def test_a_key_that_a_signal_reads_back_is_that_of_the_last_save(cached, clock):
    article = Article.objects.create(slug="zero")
    with registered(Article, name="thing", lookup="slug", sync="signals") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        for slug in ("one", "two", "three"):
            article.slug = slug
            article.save()

            assert guard.verdict(slug) is Verdict.MAYBE
