"""False positives that were found: each costs a query once, and a row made later is seen at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin import AdminSite
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.db.backends import utils
from django.db.models import Q
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.datastructures import BaseTable
from django.db.models.sql.where import WhereNode
from django.http import HttpResponse, HttpResponseNotFound
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.generic import DetailView, UpdateView
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView

from bloomguard.decorators import guarded
from bloomguard.guards import registry
from bloomguard.guards.meta import GuardMeta
from bloomguard.lookups import misses, select
from bloomguard.lookups.cache_aside import get_or_load
from bloomguard.lookups.context import guarded_lookups
from bloomguard.lookups.misses import confirm_missing
from bloomguard.process import log_once
from bloomguard.state import negative_cache as remembered
from bloomguard.state import table as state
from bloomguard.state.verdicts import ABSENT, MAYBE, REMEMBERED, Verdict
from tests.conftest import forget
from tests.shop import views
from tests.shop.models import Article, BoundPrice, Bundle, Product
from tests.support import database
from tests.support.guarding import registered, urlconf
from tests.support.patience import PATIENT
from tests.support.servers import valkey

GUARD = "bloomguard.middleware.BloomGuardMiddleware"


def products():
    """As many as fit a small filter."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))


def porous(monkeypatch, name):
    """Let the guard's filter have a lot of false positives."""
    monkeypatch.setattr(registry[name], "filter", "bloom", raising=False)
    monkeypatch.setattr(registry[name], "error_rate", 0.2, raising=False)
    monkeypatch.setattr(registry[name], "capacity", 1_000, raising=False)


@pytest.fixture
def product(build, monkeypatch):
    """The guard of a thousand products, with a filter that lets many others through."""
    porous(monkeypatch, "product")
    products()
    build("product")
    return registry["product"]


def false_positives(guard, number, start=10_000):
    """Absent IDs that the filter lets through."""
    found, value = [], start
    while len(found) < number:
        found += [value] if guard._runtime.decide(value) is MAYBE else []
        value += 1
    return found


@pytest.fixture
def found(product):
    """An absent ID that the filter lets through."""
    return false_positives(product, 1)[0]


def first(value):
    """The row as a view looks for it, or none."""
    with guarded_lookups():
        return Product.objects.filter(pk=value).first()


async def afirst(value):
    with guarded_lookups():
        return await Product.objects.filter(pk=value).afirst()


def get(value):
    with guarded_lookups():
        try:
            return Product.objects.get(pk=value)
        except Product.DoesNotExist:
            return None


def exists(value):
    with guarded_lookups():
        return Product.objects.filter(pk=value).exists() or None


def page(view, *middleware):
    """Visits a view, under its own URLconf, with what may stand before it."""
    conf = urlconf(path("<int:pk>/", view, name="product"))

    def visit(value, settings, client=Client):
        if settings.ROOT_URLCONF is not conf:  # each override lies on top of those before
            settings.MIDDLEWARE = list(middleware)
            settings.ROOT_URLCONF = conf
        visit = client().get if client is Client else async_to_sync(client().get)
        return visit(f"/{value}/").status_code == 200 or None

    return visit


class Detail(DetailView):
    model = Product

    def render_to_response(self, context):
        return HttpResponse(self.object.pk)


class Update(UpdateView):
    model = Product
    fields = ("name",)

    def render_to_response(self, context):
        return HttpResponse(self.object.pk)


class Serializer(serializers.ModelSerializer):
    class Meta:
        model = Product
        fields = ("pk",)


class Api(RetrieveAPIView):
    queryset = Product.objects.all()
    serializer_class = Serializer


@guarded("product")
def answering(request, pk):
    """Answers 404 itself."""
    return HttpResponse() if Product.objects.filter(pk=pk).first() else HttpResponseNotFound()


def apage(view, *middleware):
    visit = page(view, *middleware)
    return lambda value, settings: visit(value, settings, AsyncClient)


def admin(value, settings):
    """The admin's change view, for somebody who may see it."""
    if settings.ROOT_URLCONF is not admin_conf:
        settings.ROOT_URLCONF = admin_conf
    client = Client()
    user = get_user_model().objects.filter(username="root").first()
    client.force_login(user or get_user_model().objects.create_superuser("root"))
    return client.get(f"/admin/shop/product/{value}/change/").status_code == 200 or None


site = AdminSite()
site.register(Product)
admin_conf = urlconf(path("admin/", site.urls))

WAYS = {
    "first": lambda value, settings: first(value),
    "afirst": lambda value, settings: async_to_sync(afirst)(value),
    "get": lambda value, settings: get(value),
    "exists": lambda value, settings: exists(value),
    "function": page(views.product, GUARD),
    "DetailView": page(Detail.as_view(), GUARD),
    "UpdateView": page(Update.as_view(), GUARD),
    "rest framework": page(Api.as_view(), GUARD),
    "decorator": page(guarded("product")(views.product), GUARD),
    "decorator, no exception": page(answering, GUARD),
    "async view": apage(views.product_async, GUARD),
    "async decorator": apage(guarded("product")(views.product_async), GUARD),
    "admin": admin,
}


@pytest.fixture(params=WAYS)
def look(request, settings):
    """``look(value)`` gives something only if there is such a product."""
    return lambda value: WAYS[request.param](value, settings)


@contextmanager
def product_queries():
    """The statements that SQLite gets and that read the table of products: of the project, and those that confirm."""
    found, sent = [], []
    connection.ensure_connection()
    connection.connection.set_trace_callback(sent.append)
    try:
        yield found
    finally:
        connection.connection.set_trace_callback(None)
    found += [sql for sql in sent if 'FROM "shop_product"' in sql]


def test_a_replay_costs_no_query(product, look):
    """However one looks: twenty false positives cost a statement each and one that confirms it, a replay none."""
    values = false_positives(product, 20)
    with product_queries() as queries:
        assert [look(value) for value in values] == [None] * 20
    with product_queries() as replayed:
        assert [look(value) for _ in range(3) for value in values] == [None] * 60

    assert (len(queries), replayed) == (2 * 20, [])


@pytest.mark.parametrize("how", ["execute_wrapper", "cursor"])
def test_what_others_may_have_changed_is_confirmed(product, found, how, monkeypatch):
    """By a statement of the guard's own, past what may add a condition to the project's; so is any other miss."""
    cursor = connection.cursor
    if how == "cursor":
        monkeypatch.setattr(connection, "cursor", lambda: cursor())
    wrapper = connection.execute_wrapper(lambda execute, *statement: execute(*statement))
    with product_queries() as queries, wrapper if how == "execute_wrapper" else nullcontext():
        assert first(found) is None

    assert len(queries) == 2
    assert product._runtime.decide(found) is REMEMBERED


def test_a_row_made_later_is_seen_at_once(found, look):
    """Its recent bits are set before the row is committed."""
    look(found)
    look(found)
    Product.objects.create(pk=found)

    assert look(found)
    Product.objects.filter(pk=found).delete()
    look(found)
    Product.objects.bulk_create([Product(pk=found)])
    assert look(found)


def test_what_a_view_hides_is_not_taken_for_absent(product, settings, django_assert_num_queries):
    """A view's 404 is no proof, and makes nobody ask the database."""
    visit = page(lambda request, pk: HttpResponse(status=404), GUARD)
    with django_assert_num_queries(0):
        for _ in range(5):
            visit(7, settings)

    assert product._runtime.decide(7) is MAYBE


def test_a_loader_that_finds_nothing_makes_the_guard_ask_once_a_minute(product, clock, monkeypatch):
    """Not at each call, if the row exists, nor for each caller that waits for one load."""
    asked, is_proved = [], remembered.NegativeCache.is_proved
    monkeypatch.setattr(remembered.NegativeCache, "is_proved", lambda *args: asked.append(args) or is_proved(*args))
    for _ in range(5):
        assert get_or_load("product", 7, lambda value: None) is None
    assert len(asked) == 1

    clock.now += remembered.SECONDS + 1
    assert get_or_load("product", 7, lambda value: None) is None
    assert len(asked) == 2
    assert product._runtime.decide(7) is MAYBE


def test_other_requests_teach_nothing(found, product, settings):
    """A POST is answered by the database alone, and by nothing else."""
    settings.ROOT_URLCONF = urlconf(path("<int:pk>/", views.product, name="product"))
    with product_queries() as queries:
        assert [Client().post(f"/{found}/").status_code for _ in range(2)] == [404, 404]

    assert len(queries) == 2
    assert product._runtime.decide(found) is MAYBE


@pytest.mark.parametrize("kind", ["memory", "file", "redis"])
def test_in_every_store(kind, build, settings, monkeypatch, tmp_path):
    """Remembered after one statement each that confirms it, and forgotten the moment the row is made."""
    settings.BLOOMGUARD = {"STORES": {"default": {
        "memory": {"BACKEND": "bloomguard.stores.memory.MemoryStore"},
        "file": {"BACKEND": "bloomguard.stores.file.FileStore", "OPTIONS": {"path": tmp_path / "filters"}},
        "redis": {"BACKEND": "bloomguard.stores.redis.RedisStore",
                  "OPTIONS": {"url": valkey(), "prefix": tmp_path.name, **PATIENT}},
    }[kind]}}  # fmt: skip
    forget()
    porous(monkeypatch, "product")
    products()
    build("product")
    values = false_positives(registry["product"], 100)
    found = values[0]

    with product_queries() as queries:
        assert [first(value) for _ in range(2) for value in values] == [None] * 200
    assert len(queries) == 2 * 100
    assert registry["product"]._runtime.decide_many([1, found]) == [MAYBE, REMEMBERED]
    Product.objects.create(pk=found)
    assert first(found) is not None


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.usefixtures("fresh", "each_database")
@database.without_mariadb
def test_on_every_database(clock, monkeypatch):
    """The same on PostgreSQL as on SQLite."""
    from bloomguard.rebuild import Rebuild

    porous(monkeypatch, "product")
    products()
    Rebuild(registry["product"], sleep=clock.sleep).run()
    found = false_positives(registry["product"], 1)[0]
    first(found)

    assert registry["product"]._runtime.decide(found) is REMEMBERED
    Product.objects.create(pk=found)
    assert first(found) is not None


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.usefixtures("fresh", "each_database")
@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_query_that_another_server_answered_is_no_proof(clock):
    """A pooler may have sent it to a replica that lags, and the next statement to the primary, which has the row."""
    from bloomguard.rebuild import Rebuild

    Product.objects.create(pk=7)
    guard = registry["product"]
    Rebuild(guard, sleep=clock.sleep).run()
    assert guard._runtime.decide(7) is MAYBE

    misses.remember_missing(guard, 7, guard._runtime.active_filter.answered_last, database.current)

    assert guard._runtime.decide(7) is MAYBE


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.usefixtures("fresh", "each_database")
@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_a_query_of_another_packages_compiler_is_not_repeated_and_proves_nothing(clock, monkeypatch):
    """Without the query there is no statement that asks for the row and the published filter at once."""
    from bloomguard.rebuild import Rebuild

    Product.objects.create(pk=7)
    guard = registry["product"]
    Rebuild(guard, sleep=clock.sleep).run()
    Product.objects.filter(pk=7).delete()
    assert guard._runtime.decide(7) is MAYBE
    answered = guard._runtime.active_filter.answered_last

    with monkeypatch.context() as patch:
        patch.setattr(misses, "is_djangos_select", lambda compiler: False)
        misses.remember_missing(guard, 7, answered, database.current)
        assert guard._runtime.decide(7) is MAYBE

    misses.remember_missing(guard, 7, answered, database.current)
    assert guard._runtime.decide(7) is REMEMBERED


def test_text_and_soft_deleted_rows(build, monkeypatch):
    """A row that is alive again is seen at once, under any key."""
    porous(monkeypatch, "article")
    Article.objects.bulk_create(Article(slug=f"alive-{number}") for number in range(1_000))
    Article.objects.bulk_create(Article(slug=f"dead-{number}", deleted=True) for number in range(1_000))
    build("article")
    guard = registry["article"]
    slug = next(slug for slug in map("dead-{}".format, range(1_000)) if guard._runtime.decide(slug) is MAYBE)
    alive = Article.objects.filter(deleted=False, slug=slug)
    with guarded_lookups():
        assert not alive.exists()

    known = guard._runtime.decide(slug)
    Article.objects.filter(slug=slug).update(deleted=False)

    assert known is REMEMBERED
    with guarded_lookups():
        assert alive.get().slug == slug


# -- what proves nothing


def test_a_transaction_proves_nothing(found, product):
    """Its snapshot may be old, and a row that it deleted may come back."""
    Product.objects.create(pk=3_000_000)
    with transaction.atomic():
        Product.objects.filter(pk=5).delete()
        for value in (found, 5):
            assert first(value) is None
            assert get(value) is None
            assert get_or_load("product", value, lambda value: None) is None
        transaction.set_rollback(True)

    assert product._runtime.decide(found) is MAYBE
    assert first(5) is not None


def test_a_thread_without_a_connection_needs_none_where_nothing_is_asked(found, product):
    """What is absent, or remembered, opens no connection to the database; a false positive that is new does."""
    absent = next(value for value in range(10_000, 20_000) if product._runtime.decide(value) is ABSENT)

    def opened(value):
        confirm_missing(product, value)
        try:
            return connection.connection is not None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as elsewhere:
        assert list(elsewhere.map(opened, [absent, found, found])) == [False, True, False]


@pytest.mark.parametrize(
    "rows",
    [
        lambda one: one.exclude(name=""),
        lambda one: one.filter(pk__gt=99_999),
        lambda one: one.filter(name="another"),
        lambda one: one.filter(Q(name="a") | Q(name="b")),
        lambda one: one[5:],
        lambda one: one.filter(review__pk=1),
        lambda one: Bundle.objects.filter(pk__in=one),
        lambda one: one.none(),
    ],
    ids=["exclude", "greater", "condition", "or", "offset", "join", "child", "none"],
)
def test_other_rows_prove_nothing(product, found, rows):
    """A miss among some of the rows says nothing of the others."""
    with guarded_lookups():
        for value in (7, found):
            assert list(rows(Product.objects.filter(pk=value))) == []

    assert product._runtime.decide(7) is MAYBE
    assert product._runtime.decide(found) is MAYBE


class Hiding(utils.CursorWrapper):
    """Gives each SELECT of products a condition, as that of a tenant."""

    def execute(self, sql, params=None):
        return super().execute(sql.replace('FROM "shop_product" WHERE', 'FROM "shop_product" WHERE 0 AND'), params)


class Empty(utils.CursorWrapper):
    """Gives no row."""

    def fetchone(self):
        return None

    def fetchmany(self, size=None):
        return []


class Around(utils.CursorWrapper):
    """Puts something between itself and the driver that gives no row."""

    def __init__(self, cursor, db):
        super().__init__(mock.Mock(wraps=cursor, fetchone=lambda: None, fetchmany=lambda size: []), db)


@pytest.mark.parametrize("cursor", [Hiding, Empty, Around])
def test_a_row_that_another_class_of_cursors_hides_is_not_taken_for_absent(product, monkeypatch, cursor):
    """A project may put a class in the place of Django's."""
    with monkeypatch.context() as patched:
        patched.setattr(utils, "CursorWrapper", cursor)
        assert (first(7), exists(7)) == (None, None)

    assert product._runtime.decide(7) is MAYBE
    assert first(7) is not None


def test_what_django_does_not_send_proves_nothing(product, monkeypatch):
    """``exists()`` of a number beyond the range of the model's field sends no query: the column may be wider."""
    monkeypatch.setattr(connection.ops, "integer_field_range", lambda kind: (1, 6))
    with product_queries() as queries:
        assert (first(7), exists(7)) == (None, None)

    assert queries == []
    assert product._runtime.decide(7) is MAYBE


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.usefixtures("fresh")
def test_an_order_that_takes_rows_away_proves_nothing(clock, monkeypatch):
    """On PostgreSQL, a set-returning function in the ORDER BY gives no row if its set is empty."""
    from bloomguard.rebuild import Rebuild

    with database.on("postgresql"):
        porous(monkeypatch, "product")
        products()
        Rebuild(registry["product"], sleep=clock.sleep).run()
        with guarded_lookups():
            ordered = Product.objects.extra(order_by=["shop_product.id, generate_series(1, 0)"])
            assert ordered.filter(pk=7).first() is None

        assert registry["product"]._runtime.decide(7) is MAYBE
        assert first(7) is not None


def test_an_order_by_another_table_proves_nothing(transactional_db, fresh, clock):
    """Django joins that table, so a row whose foreign key leads nowhere is not found."""
    from bloomguard.rebuild import Rebuild

    row = BoundPrice.objects.create(price_id=5)
    with registered(BoundPrice, name="bound-price") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert BoundPrice.objects.order_by("price__pk").filter(pk=row.pk).first() is None

        assert guard._runtime.decide(row.pk) is MAYBE


class Hiding(WhereNode):
    """A project's own WHERE, which no row meets."""

    def as_sql(self, compiler, connection):
        sql, parameters = super().as_sql(compiler, connection)
        return f"({sql}) AND 1 = 0", parameters


def test_a_where_of_the_projects_proves_nothing(product):
    """It may have a condition of its own."""
    rows = Product.objects.filter(pk=7)
    rows.query.where.__class__ = Hiding
    with guarded_lookups():
        assert rows.first() is None

    assert product._runtime.decide(7) is MAYBE


def test_another_table_in_the_place_of_the_models_proves_nothing(product):
    """A project may read a table of archived rows by the same model."""
    rows = Product.objects.filter(pk=7)
    rows.query.alias_map = {"shop_product": BaseTable("shop_article", "shop_product")}
    with guarded_lookups():
        assert not rows.exists()

    assert product._runtime.decide(7) is MAYBE


def test_two_values_for_the_key_prove_nothing(product, found):
    """No row has both, which says nothing of either."""
    with guarded_lookups():
        assert not Product.objects.filter(pk=7).filter(pk=found).exists()
        assert not Product.objects.filter(pk=found).filter(pk=7).exists()

    assert product._runtime.decide(7) is MAYBE


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_another_database_proves_nothing(product, found):
    """A query that a project sends elsewhere says nothing of the guard's rows."""
    with guarded_lookups():
        assert not Product.objects.using("postgresql").filter(pk=7).exists()

    assert product._runtime.decide(7) is MAYBE


def test_a_related_row_that_is_missing_proves_nothing(product):
    """``select_related`` joins: a row without its other half is none."""
    with guarded_lookups():
        assert Bundle.objects.select_related("product_ptr").filter(pk=7).first() is None

    assert product._runtime.decide(7) is MAYBE


def test_a_loader_proves_nothing(found, product):
    """What it found nothing in is its own business: the database is asked."""
    assert get_or_load("product", 7, lambda value: None) is None
    assert get_or_load("product", found, lambda value: None) is None

    assert product._runtime.decide(7) is MAYBE
    assert product._runtime.decide(found) is REMEMBERED


def test_a_scan_that_goes_on_proves_nothing(product, clock):
    """On SQLite it holds on to a snapshot, which may be older than the generation that answers."""

    def meanwhile():
        from bloomguard.rebuild import Rebuild

        Product.objects.create(pk=3_000_000)
        Rebuild(product, sleep=clock.sleep).run()
        connection.close()

    scan = Product.objects.iterator(chunk_size=1)
    next(scan)
    thread = threading.Thread(target=meanwhile)
    thread.start()
    thread.join()
    assert product._runtime.decide(1) is MAYBE  # by now the new generation answers
    assert first(3_000_000) is None  # the snapshot's own truth
    scan.close()

    assert first(3_000_000) is not None


def test_a_normalizer_proves_nothing(found, product, monkeypatch):
    """Several values may have one key, and only one of them was looked for."""
    monkeypatch.setattr(product, "_meta", GuardMeta(product, str.lower))
    first(found)

    assert product._runtime.decide(found) is MAYBE


# -- how long, and how many


def test_for_a_minute(found, product, clock):
    """Then the database is asked again."""
    first(found)
    clock.now += 59
    assert product._runtime.decide(found) is REMEMBERED
    clock.now += 2

    assert product._runtime.decide(found) is MAYBE


def test_only_of_the_generation_that_answers(found, product, build):
    """A rebuild, in which the row need not be recent, begins anew."""
    first(found)
    build("product")

    assert product._runtime.decide(found) is not REMEMBERED


def test_the_last_ones_alone(product, monkeypatch):
    """A process remembers so many keys and no more."""
    monkeypatch.setattr(remembered, "MOST_KEYS", 3)
    values = false_positives(product, 5)
    for value in values:
        first(value)

    assert [product._runtime.decide(value) is REMEMBERED for value in values] == [False, False, True, True, True]


def test_what_is_over_leaves_nothing_behind(product, clock):
    """After a minute the next one that is remembered takes the place of those before."""
    old, new = false_positives(product, 5), false_positives(product, 1, start=50_000)[0]
    for value in old:
        first(value)
    clock.sleep(remembered.SECONDS + 1)
    first(new)

    assert product._runtime.active_filter.negative_cache.marks == {hash(product._meta.keys.key(new))}
    assert len(product._runtime.active_filter.negative_cache._kept) == 1


def test_a_key_that_is_asked_for_once_more_leaves_no_mark(found, product, clock):
    """If its row exists by then, nothing is remembered, and no other key would ever take the mark away."""
    cache = product._runtime.active_filter.negative_cache
    first(found)
    clock.sleep(remembered.SECONDS + 1)
    state.table.renew()

    assert cache.is_worth_asking(product._meta.keys.key(found), product._runtime.active_filter.answered_last)
    assert cache.marks == set()


def test_no_key_is_kept(found, product):
    """What is remembered is a digest, which tells nothing of the ID."""
    first(found)
    (_, digest), *others = product._runtime.active_filter.negative_cache._kept

    assert others == []
    assert len(digest) == 16
    assert product._meta.keys.key(found) not in digest


def test_a_child_process_remembers_nothing(found, product):
    """What a fork copies might be of a store that is another one here."""
    first(found)
    product._runtime.active_filter.forget()

    assert product._runtime.decide(found) is MAYBE


# -- when in doubt


def test_only_under_a_lease(found, product, clock, monkeypatch):
    """Whoever may have missed a fence asks the database."""
    first(found)
    clock.now += 5
    monkeypatch.setattr(state.table, "renew", lambda **kwargs: False)

    assert product._runtime.decide(found).verdict is Verdict.UNKNOWN


def test_not_while_fenced(found, product, clock):
    """A writer that could not add has fenced the guard."""
    first(found)
    state.table.fence("product", "for a test")
    clock.now += 5

    assert product._runtime.decide(found).verdict is not Verdict.ABSENT


def test_a_store_that_fails_is_asked_for_nothing(found, product, monkeypatch):
    """Whether the row is recent cannot be told, so the database is asked."""
    from bloomguard.exceptions import StoreUnavailable

    def fail(key):
        raise StoreUnavailable("gone")

    first(found)
    (generation,) = product._runtime.active_filter._opened.values()
    monkeypatch.setattr(generation, "is_recent", fail)

    assert product._runtime.decide(found) is MAYBE


def test_an_error_of_our_own_is_no_ones_error(found, product, monkeypatch, settings, caplog):
    """It is logged once, and the answer is the view's."""

    def fail(*args):
        raise RuntimeError("oops")

    monkeypatch.setattr(product._runtime.active_filter.negative_cache, "remember", fail)
    log_once.forget()
    with caplog.at_level("ERROR", logger="bloomguard"), CaptureQueriesContext(connection):
        assert [first(found) for _ in range(3)] == [None] * 3
        assert page(views.product, GUARD)(found, settings) is None

    assert len([record for record in caplog.records if record.name == "bloomguard"]) == 1
    assert database.current == "default"


def test_a_miss_that_a_cache_of_results_gives_opens_no_connection(product, found, monkeypatch, caplog):
    """As django-cachalot may give one from another process, to a thread that has sent no statement yet."""
    with monkeypatch.context() as patch:
        patch.setattr(SQLCompiler, "execute_sql", lambda compiler, *args: compiler.as_sql() and [])
        patch.delattr(SQLCompiler, "_bloomguard_execute_sql")
        select.connect()
        with ThreadPoolExecutor(1) as elsewhere:
            missed = elsewhere.submit(first, found).result(), elsewhere.submit(lambda: connection.connection).result()

    assert (*missed, caplog.text) == (None, None, "")
