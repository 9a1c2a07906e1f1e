"""Queries whose result says something else than that there is such a row, or none."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from copy import copy

import pytest
from django.core.cache import caches
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Case, F, Func, IntegerField, Q, QuerySet, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Length
from django.db.models.lookups import GreaterThan
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.constants import MULTI
from django.db.models.sql.datastructures import BaseTable
from django.db.models.sql.where import OR, WhereNode
from django.test.utils import CaptureQueriesContext

from bloomguard import get_or_load
from bloomguard.guards import registry
from bloomguard.lookups import select
from bloomguard.lookups.context import guarded_lookups
from bloomguard.rebuild import Rebuild
from bloomguard.routes.explain import NOWHERE, rows_of_pattern
from bloomguard.routes.table import guarded_routes, table_for
from bloomguard.state import table as state
from bloomguard.state.connection import fetch_uncounted
from bloomguard.state.verdicts import Verdict
from tests.lookups.models import Annex, Coded, Hall, Place, Rounded, Shelf
from tests.lookups.test_select import ABSENT, lookups, queries, rows, shop  # noqa: F401
from tests.shop import views
from tests.shop.models import Product
from tests.support import database
from tests.support.guarding import registered, urlconf

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("each_database", "fresh"),
]


@pytest.fixture
def on_postgresql():
    if database.current != "postgresql":
        pytest.skip("PostgreSQL's alone")


class Unnest(Func):
    """A function that returns a set: a row whose set is empty is left out."""

    function = "unnest"
    template = "%(function)s(%(expressions)s::int[])"
    output_field = IntegerField()


def own_max(field):
    return type("Biggest", (Func,), {"function": "MAX"})(F(field))


# -- what proves that there is no row


@pytest.mark.parametrize("where", ["annotation", "order"])
def test_an_empty_set_beside_a_row_is_no_missing_row(lookups, on_postgresql, where):  # noqa: F811
    """The query finds nothing and the row is there: a guard neither answers such a query nor learns from it."""
    each = Unnest(Value("{}"))
    asked = rows.annotate(each=each) if where == "annotation" else rows.order_by(each)

    assert list(asked.filter(pk=7)) == []
    assert rows.get(pk=7).name == "tea"
    assert queries(lambda: list(asked.filter(pk=ABSENT))) == 1


@pytest.mark.parametrize(
    "ask",
    [lambda found: found.intersection(rows.filter(pk=ABSENT)), lambda found: found.difference(rows.filter(pk=7)),
     lambda found: found.extra(tables=["shop_review"])],
    ids=["intersection", "difference", "empty table"],
)  # fmt: skip
def test_a_row_that_another_part_of_the_query_leaves_out_is_not_missing(lookups, ask):  # noqa: F811
    """The key is in the filter, so the rest of the query was not inspected before it was sent."""
    assert rows.get(pk=7).name == "tea"  # opens the filter
    assert list(ask(rows.filter(pk=7))) == []
    assert rows.get(pk=7).name == "tea"


@pytest.mark.parametrize(
    "narrow",
    [lambda found: found.filter(name="tea"), lambda found: found[1:], lambda found: found.select_related("bundle")],
    ids=["condition", "offset", "relations"],
)
@database.without_mariadb
def test_only_a_query_for_the_key_alone_is_followed_up(lookups, narrow):  # noqa: F811
    """Of another query, its finding nothing is not remembered; that of the plain one is."""
    Product.objects.filter(pk=7).delete()  # which leaves its key in the filter

    assert [queries(lambda: list(narrow(rows.filter(pk=7)))) for _ in range(2)] == [1, 1]
    assert queries(lambda: list(rows.filter(pk=7))) == 1
    assert queries(lambda: list(rows.filter(pk=7))) == 0


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_hidden_rows_are_not_missing_from_the_moment_on(lookups):  # noqa: F811
    """Row-level security may hide a row from one user that another one sees."""
    Product.objects.filter(pk=7).delete()
    raw = connections["postgresql"].connection
    raw.execute("ALTER TABLE shop_product ENABLE ROW LEVEL SECURITY")  # past Django
    try:
        assert [queries(lambda: rows.filter(pk=7).first()) for _ in range(2)] == [1, 1]
    finally:
        raw.execute("ALTER TABLE shop_product DISABLE ROW LEVEL SECURITY")
    assert [queries(lambda: rows.filter(pk=7).first()) for _ in range(2)] == [1, 0]


@contextmanager
def role_without_rows():
    """PostgreSQL's row-level security hides every product from the role that the session has in this block."""
    raw = database.unseen(connections["postgresql"])  # DDL by Django would fence the guard
    raw.execute("CREATE ROLE nobodys_reader")
    raw.execute("GRANT SELECT ON shop_product TO nobodys_reader")
    raw.execute("ALTER TABLE shop_product ENABLE ROW LEVEL SECURITY")
    try:
        raw.execute("SET ROLE nobodys_reader")
        try:
            yield
        finally:
            raw.execute("RESET ROLE")
        assert rows.get(pk=7).name == "tea"
    finally:
        raw.execute("ALTER TABLE shop_product DISABLE ROW LEVEL SECURITY")
        raw.execute("DROP OWNED BY nobodys_reader")
        raw.execute("DROP ROLE nobodys_reader")


@pytest.mark.parametrize(
    "look",
    [lambda: rows.filter(pk=7).first(), lambda: get_or_load("product", 7, lambda pk: rows.filter(pk=pk).first())],
    ids=["lookup", "get_or_load"],
)  # fmt: skip
def test_what_a_policy_hides_is_not_taken_for_missing(lookups, on_postgresql, look):  # noqa: F811
    """Under row-level security one role's query finds nothing where another's finds the row."""
    caches["default"].clear()
    with role_without_rows():
        assert [look() for _ in range(2)] == [None, None]
        assert queries(lambda: rows.filter(pk=7).first()) == 1


# -- packages that wrap the compiler as well


def caching(execute):
    """A cache of results in between, as django-cachalot puts one: it answers what was so some time ago."""
    kept = {}

    @functools.wraps(execute)
    def execute_sql(compiler, result_type="multi", *args, **kwargs):
        key = str(compiler.as_sql())
        if key not in kept:
            found = execute(compiler, result_type, *args, **kwargs)
            kept[key] = found if found is None or isinstance(found, tuple) else list(found)
        return kept[key]

    return execute_sql


def test_absences_are_answered_around_a_cache_of_results(shop, monkeypatch):  # noqa: F811
    """One that was patched before bloomguard."""
    with monkeypatch.context() as patch:
        patch.setattr(SQLCompiler, "execute_sql", caching(SQLCompiler._bloomguard_execute_sql))
        patch.delattr(SQLCompiler, "_bloomguard_execute_sql")
        select.connect()
        with guarded_lookups():
            assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0


def test_a_package_that_is_reloaded_takes_no_wrapper_off_but_its_own(shop, monkeypatch):  # noqa: F811
    """As django-cachalot's panel of the debug toolbar does in each request, whoever was patched last."""
    with monkeypatch.context() as patch:
        for _ in range(3):
            patch.setattr(
                SQLCompiler, "execute_sql", getattr(SQLCompiler.execute_sql, "__wrapped__", SQLCompiler.execute_sql)
            )
            with guarded_lookups():
                assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
            patch.setattr(SQLCompiler, "execute_sql", caching(SQLCompiler.execute_sql))


@pytest.mark.parametrize("names_what_it_wraps", [True, False])
def test_a_loader_that_finds_nothing_is_checked_past_such_a_cache(shop, clock, monkeypatch, names_what_it_wraps):  # noqa: F811
    """The guard's own query for the key, and those of the project: what the cache has kept says nothing of today."""
    caches["default"].clear()
    with monkeypatch.context() as patch:
        between = caching(SQLCompiler._bloomguard_execute_sql)
        if not names_what_it_wraps:
            del between.__wrapped__
            between.__module__ = __name__
        patch.setattr(SQLCompiler, "execute_sql", between)
        patch.delattr(SQLCompiler, "_bloomguard_execute_sql")
        select.connect()
        look = lambda: rows.filter(id=9).exists()  # noqa: E731
        assert not look()  # which the cache keeps
        Product.objects.bulk_create([Product(pk=9, name="new")])
        assert get_or_load("product", 9, lambda pk: None) is None
        with guarded_lookups():
            assert not look()
            assert registry["product"].verdict(9) is Verdict.MAYBE
    with guarded_lookups():
        assert rows.get(pk=9).name == "new"


def of_a_tenant(sql):
    return sql.replace(" WHERE ", " WHERE name = 'mine' AND ", 1)


@contextmanager
def rewritten(how, monkeypatch):
    """Each SELECT of a product is sent with a condition more."""
    connection = connections[database.current]
    if how == "wrapper":
        with connection.execute_wrapper(lambda execute, sql, *rest: execute(of_a_tenant(sql), *rest)):
            yield
        return
    with monkeypatch.context() as patch:
        if how == "cursor":
            execute = CursorWrapper.execute
            patch.setattr(CursorWrapper, "execute", lambda self, sql, *rest: execute(self, of_a_tenant(sql), *rest))
        elif how == "where":
            where = WhereNode.as_sql

            def narrowed(self, compiler, connection):
                sql, parameters = where(self, compiler, connection)
                return f"{sql} AND 1 = 0", parameters

            patch.setattr(WhereNode, "as_sql", narrowed)
        elif how == "vendor":
            patch.setattr(WhereNode, f"as_{connection.vendor}", lambda *args: ("1 = 0", []), raising=False)
        else:
            owner = SQLCompiler if how == "patched compiler" else type("Own", (SQLCompiler,), {})
            as_sql = SQLCompiler.as_sql

            @functools.wraps(as_sql)
            def rewriting(self, *args, **kwargs):
                sql, parameters = as_sql(self, *args, **kwargs)
                return of_a_tenant(sql), parameters

            patch.setattr(owner, "as_sql", rewriting)
            patch.setattr(connection.ops, "compiler", lambda name: owner)
        yield


LOOKS = {
    "lookup": lambda: rows.filter(pk=7).first(),
    "loader": lambda: get_or_load("product", 7, lambda pk: None),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_statement_that_others_have_changed_is_no_proof(lookups, monkeypatch, look):  # noqa: F811
    """A condition that is added on the way to the database, as that of a tenant, hides a row from one request alone.

    Neither the view's own query is a proof, nor the one that confirms what a loader has not found.
    """
    for how in ("wrapper", "cursor", "patched compiler", "compiler", "where", "vendor"):
        registry["product"]._runtime.active_filter.negative_cache.forget()  # else no loader asks again
        with rewritten(how, monkeypatch):
            assert look() is None, how

        assert rows.filter(pk=7).exists(), how
        assert registry["product"].verdict(7) is Verdict.MAYBE, how


@pytest.mark.parametrize("how", ["patched compiler", "compiler"])
def test_a_compiler_of_the_project_is_asked(lookups, monkeypatch, how):  # noqa: F811
    """It may make a SELECT of another table, which has a row that the guard's does not."""
    with rewritten(how, monkeypatch):
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 1

    assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0


get_from_clause = SQLCompiler.get_from_clause


def from_another_table(compiler):
    [table, *joins], parameters = get_from_clause(compiler)
    return [of_other_table(table), *joins], parameters


class Elsewhere(SQLCompiler):
    """Reads another table under the name of the model's."""

    get_from_clause = from_another_table


class Plain(SQLCompiler):
    """Of a package, but it makes what Django's makes."""


class Commented(SQLCompiler):
    def as_sql(self, *args, **kwargs):
        sql, parameters = super().as_sql(*args, **kwargs)
        return f"{sql} /* of a package */", parameters


class Shifted(SQLCompiler):
    """The same text, with the ID of another row."""

    def as_sql(self, *args, **kwargs):
        sql, parameters = super().as_sql(*args, **kwargs)
        return sql, tuple(7 if each == ABSENT else each for each in parameters)


class Late(Query):
    """As a package for soft deletes has one: it adds its condition when the statement is about to be compiled."""

    kind = None

    def get_compiler(self, *args, **kwargs):
        self.add_q(Q(name__isnull=False))
        made = super().get_compiler(*args, **kwargs)
        return self.kind(self, made.connection, made.using) if self.kind else made


class LateCommented(Late):
    kind = Commented


@pytest.mark.parametrize(
    ("compiler", "query", "sent"),
    [
        *((Plain, Query, 0), (SQLCompiler, Late, 0), (Plain, Late, 0)),
        *((Commented, Query, 1), (Shifted, Query, 1), (Shifted, Late, 1), (SQLCompiler, LateCommented, 1)),
    ],
)
def test_a_packages_classes_are_answered_if_djangos_make_the_same_sql(lookups, monkeypatch, compiler, query, sent):  # noqa: F811
    """Its own class of queries or compilers shows nothing else of what it finds."""
    monkeypatch.setattr(connections[database.current].ops, "compiler", lambda name: compiler)

    def found(pk):
        each = rows.filter(pk=pk)
        each.query.__class__ = query
        return list(each)

    assert [each.pk for each in found(7)] == [7]
    assert queries(lambda: found(ABSENT)) == sent
    monkeypatch.setattr(SQLCompiler, "get_from_clause", from_another_table)
    assert queries(lambda: found(ABSENT)) == 1


class Hinted(SQLCompiler):
    """What the project has set for one statement is gone once it is compiled."""

    def as_sql(self, *args, **kwargs):
        sql, parameters = super().as_sql(*args, **kwargs)
        return f"{sql}{vars(self.query).pop('hint', '')}", parameters


def test_a_query_that_its_compiler_changes_is_sent_unchanged(lookups, monkeypatch):  # noqa: F811
    """To find out whether Django's classes make the same SQL, a copy of it is compiled."""
    monkeypatch.setattr(connections[database.current].ops, "compiler", lambda name: Hinted)
    found = rows.filter(pk=ABSENT)
    found.query.hint = " /* of the project */"

    with CaptureQueriesContext(connections[database.current]) as sent:
        assert not found
    assert sent[-1]["sql"].endswith(" /* of the project */")


class Falling(SQLCompiler):
    """Looks at what it gets: it has another place for rows that are not in the table."""

    def execute_sql(self, result_type=MULTI, **options):
        return super().execute_sql(result_type, **options) or [[(ABSENT, "archived")]]


def test_an_answer_is_what_the_database_gives(lookups, monkeypatch):  # noqa: F811
    """An empty list, which is false, and no iterator."""
    monkeypatch.setattr(connections[database.current].ops, "compiler", lambda name: Falling)

    assert [each.name for each in rows.filter(pk=ABSENT)] == ["archived"]


class OtherTable(BaseTable):
    """The same, put into one query."""

    def as_sql(self, compiler, connection):
        sql, parameters = super().as_sql(compiler, connection)
        return of_other_table(sql), parameters


class OtherMeta(Query):
    """Of a package that gives each year a table: Django's ``Query`` takes the name of the table from here."""

    def get_meta(self):
        meta = copy(super().get_meta())
        meta.db_table = "shop_other"
        return meta


def of_other_table(sql):
    return f"(SELECT {ABSENT} AS id, 'coffee' AS name) AS {sql}"


@contextmanager
def reading_elsewhere(how, monkeypatch):
    """A queryset of products that finds the rows of another table."""
    found = rows.filter(pk=ABSENT)
    with monkeypatch.context() as patch:
        if how == "compiler":
            patch.setattr(connections[database.current].ops, "compiler", lambda name: Elsewhere)
        elif how == "patched compiler":
            patch.setattr(SQLCompiler, "get_from_clause", from_another_table)
        elif how == "meta":
            found = QuerySet(Product, query=OtherMeta(Product)).filter(pk=ABSENT)
        else:
            [alias] = found.query.alias_map
            if how == "class":
                found.query.alias_map[alias] = OtherTable(alias, alias)
            else:
                found.query.alias_map[alias].table_name = "shop_other"
        yield found


@pytest.mark.parametrize("how", ["compiler", "patched compiler", "class"])
def test_a_query_that_reads_another_table_is_sent(lookups, monkeypatch, how):  # noqa: F811
    """Whatever puts it there, in the FROM of the SELECT: that table may have the row."""
    with reading_elsewhere(how, monkeypatch) as found:
        assert found.get().name == "coffee"


@pytest.mark.parametrize("how", ["name", "meta"])
def test_a_query_whose_table_has_another_name_is_sent(lookups, monkeypatch, how):  # noqa: F811
    """It may be a partition of the project's; here there is no such table, so the database refuses it."""
    with reading_elsewhere(how, monkeypatch) as found, pytest.raises(DatabaseError):
        found.first()


class Either(WhereNode):
    """Joins its children by OR, whatever its connector says."""

    def as_sql(self, compiler, connection):
        return WhereNode(self.children, OR).as_sql(compiler, connection)


@pytest.mark.parametrize("where", [Either, lambda children: WhereNode([Either(children)])], ids=["whole", "part"])
def test_a_where_that_the_project_joins_in_its_own_way_is_sent(lookups, where):  # noqa: F811
    """Only its own ``as_sql`` knows what it finds: here another row too."""
    found = rows.filter(pk=ABSENT)
    found.query.where = where([*rows.filter(pk=7).query.where.children, *found.query.where.children])

    assert found.get().name == "tea"


def test_what_another_table_lacks_is_not_taken_for_missing(lookups, monkeypatch):  # noqa: F811
    """The negative cache's own statement reads the guard's table, or proves nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(connections[database.current].ops, "compiler", lambda name: Elsewhere)
        assert rows.filter(pk=7).first() is None
        assert get_or_load("product", 7, lambda pk: None) is None

    assert rows.get(pk=7).name == "tea"


def test_a_server_that_lags_behind_proves_nothing(shop):  # noqa: F811
    """The ORM's connection may lead to a standby, where neither the row nor the rebuild has arrived yet."""
    if database.current != "postgresql":
        pytest.skip("PostgreSQL's alone")
    product, connection = registry["product"], connections["postgresql"]
    Product.objects.filter(pk=7).delete()
    fetch_uncounted(connection, "CREATE TEMP TABLE bloomguard_guardstate AS SELECT * FROM bloomguard_guardstate")
    try:
        for active, expected in [("older", Verdict.MAYBE), ("", Verdict.MAYBE)]:
            fetch_uncounted(connection, "UPDATE pg_temp.bloomguard_guardstate SET active = %s", [active])
            with guarded_lookups():
                assert rows.filter(pk=7).first() is None
            assert product.verdict(7) is expected
    finally:
        fetch_uncounted(connection, "DROP TABLE pg_temp.bloomguard_guardstate")
    with guarded_lookups():
        assert rows.filter(pk=7).first() is None
    assert product.verdict(7) is Verdict.ABSENT


def test_a_cache_in_front_of_the_guard_keeps_it_in_place(shop, monkeypatch):  # noqa: F811
    """Patched after bloomguard, with bloomguard's mark on it: nothing is wrapped a second time."""
    monkeypatch.setattr(SQLCompiler, "execute_sql", caching(SQLCompiler.execute_sql))
    before = SQLCompiler.execute_sql
    select.connect()

    assert SQLCompiler.execute_sql is before
    with guarded_lookups():
        assert queries(lambda: rows.filter(pk=ABSENT).first()) == 0
        assert rows.get(pk=7).name == "tea"


# -- what is no query for one row, though it has the key


@pytest.mark.parametrize(
    "biggest",
    [lambda: Func(F("pk"), function="MAX"), lambda: RawSQL("MAX(shop_product.id)", ()),
     lambda: Length("pk", function="MAX"), lambda: own_max("pk"),
     lambda: Case(When(Q(GreaterThan(own_max("pk"), 0)), then=1))],
    ids=["Func", "RawSQL", "another function", "own class", "in a condition"],
)  # fmt: skip
@database.without_mariadb
def test_an_aggregate_that_django_does_not_know_gives_a_row_for_none(lookups, biggest):  # noqa: F811
    """Any SQL of the project's own may be one."""
    found = rows.filter(pk=ABSENT).annotate(biggest=biggest()).values_list("biggest", flat=True)

    assert queries(lambda: list(found)) == 1
    assert list(found.all()) == [None]


def test_a_condition_may_be_an_annotation(lookups):  # noqa: F811
    """So may its negation, and one inside another."""
    named = rows.annotate(named=~Q(name=""), cheap=Q(Q(name="cheap") | Q(name="tea")))

    assert named.get(pk=7).named
    assert queries(lambda: list(named.filter(pk=ABSENT))) == 0


def test_alive_of_another_row_is_not_that_of_the_row(clock):
    """A child's query may ask for ``alive`` of a row that its foreign key leads to, in a table of the same name."""
    Hall.objects.create(id=1, slug="hall", size=0)
    hall = Hall.objects.get(pk=1)
    Annex.objects.create(code="dead", id=2, slug="dead", size=5, hall=hall)
    with registered(Annex, name="small-annex", alive=Q(size=0)) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert Annex.objects.get(code="dead", hall__size=0).size == 5
            assert Annex.objects.get(code="dead", hall__place_ptr__size=0).size == 5
            assert queries(lambda: Annex.objects.filter(code="dead", size=0).first()) == 0


@pytest.mark.parametrize(
    "alive", [Q(place__size=1), Q(id=F("place__size")), ~Q(place__slug="sold"), Q(size=1)], ids=str
)
def test_a_row_becomes_alive_by_a_write_of_its_parents_table(clock, alive):
    """However ``alive`` spells the column: also by the link to the parent."""
    Annex.objects.create(code="a", id=1, slug="sold", size=5)
    with registered(Annex, name="alive-annex", alive=alive) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            found = Annex.objects.filter(alive, code="a")
            assert queries(lambda: list(found.all())) == 0

            Place.objects.filter(pk=1).update(slug="kept", size=1)

            assert found.get().size == 1


def test_rows_that_a_base_manager_leaves_out_are_found_by_the_others(clock):
    """The filter has every row, whatever a manager leaves out."""
    Shelf.objects.create(pk=1, gone=True)
    with registered(Shelf, name="shelf") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups():
            assert Shelf.objects.get(pk=1).gone
            assert Shelf.kept.filter(pk=1).first() is None
            assert queries(lambda: Shelf.objects.filter(pk=2).first()) == 0
            assert queries(lambda: Shelf.kept.filter(pk=2).first()) == 0


def test_a_field_that_converts_its_values_is_left_to_the_database(clock, settings):
    """What a query compares is not what a row holds: neither the lookup nor the route answers, and the list says so."""
    settings.ROOT_URLCONF = urlconf_of_codes()
    Coded.objects.create(pk=1, code=7)
    with registered(Coded, name="coded", lookup="code", routes=["coded"]) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        [route] = guarded_routes(guard)
        with guarded_lookups():
            assert Coded.objects.get(code=7).pk == 1
            assert queries(lambda: Coded.objects.filter(code=8).first()) == 1

        [row] = rows_of_pattern(table_for(), route.pattern)

    assert route.closed == "code converts values with the project's own code"
    assert row.answered == NOWHERE


@pytest.mark.parametrize("lookup", ["code", ("id", "code")], ids=str)
def test_a_normalizer_of_texts_allows_for_no_number(clock, lookup):
    """A ``normalize`` is not called for numbers, so their conversions are left to the database all the same."""
    with registered(Coded, name="coded", lookup=lookup, normalize=lambda self, value: value.casefold()) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        Coded.objects.create(pk=1, code=7)
        with guarded_lookups():
            assert Coded.objects.get(pk=1, code=7).code == 7


@pytest.mark.parametrize("lookup", ["code", "pk"])
def test_a_number_is_found_as_it_is_stored_and_as_it_is_compared(clock, lookup):
    """Django cuts a number that is stored, alone or in a tuple, whatever ``to_python`` makes of it."""
    with registered(Rounded, name="rounded", lookup=lookup) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        Rounded.objects.create(shelf=1, code=7.9)
        Rounded.objects.bulk_create([Rounded(shelf=2, code=3.9), Rounded(shelf=2, code=5.9)])
        with guarded_lookups():
            for shelf, number in ((1, 7), (2, 3), (2, 5)):
                for asked in (number, number + 0.9):
                    assert Rounded.objects.get(shelf=shelf, code=asked).code == number
                    assert Rounded.objects.get(pk=(shelf, asked)).code == number
            assert queries(lambda: Rounded.objects.filter(pk=(3, 4)).first()) == 0


def test_a_tuple_that_django_cannot_compare_is_left_to_it(clock, caplog):
    """It raises its own error, and no log line says that the guard has failed."""
    with registered(Rounded, name="rounded") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        with guarded_lookups(), pytest.raises(ValueError, match="expected a number"):
            Rounded.objects.filter(pk=(1, "x")).exists()

    assert caplog.records == []


def urlconf_of_codes():
    from django.urls import path

    return urlconf(path("c/<int:code>/", lambda request, code: views.product(request, code), name="coded"))


# -- locks


@contextmanager
def other_session(begin):
    """Another program's connection, in the middle of something."""
    connection = connections.create_connection(database.current)
    try:
        with connection.cursor() as cursor:
            cursor.execute(begin)
            yield
            cursor.execute("ROLLBACK")
    finally:
        connection.close()


def test_a_table_that_another_session_has_locked_is_not_waited_for(lookups, on_postgresql):  # noqa: F811
    """An absent row is answered at once; for any other the database says what it always says."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    try:
        with locked_table():
            assert rows.filter(pk=ABSENT).first() is None
            with pytest.raises(OperationalError):
                rows.filter(pk=7).first()
    finally:
        connections["postgresql"].close()


@contextmanager
def locked_table():
    connection = connections.create_connection("postgresql")
    try:
        raw = database.unseen(connection)
        with connection.connection.transaction():
            raw.execute("LOCK TABLE shop_product IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        connection.close()


@pytest.fixture
def file_without_log(monkeypatch):
    """A SQLite file whose writer keeps readers out, as one in WAL mode does not."""
    if database.current != "default":
        pytest.skip("SQLite's alone")
    monkeypatch.delitem(connections["default"].settings_dict["OPTIONS"], "init_command")
    set_journal("DELETE")
    yield
    set_journal("WAL")


def set_journal(mode):
    connection = connections["default"]
    state.table.connection.close()
    connection.close()
    connection.ensure_connection()
    assert connection.connection.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode.lower(),)


def test_the_state_rows_of_a_locked_file_are_not_waited_for(shop, clock, monkeypatch, file_without_log):  # noqa: F811
    """A writer keeps everybody out of the file for as long as it likes; the guard then says nothing."""
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "timeout", 100_000)
    guard = registry["product"]
    assert guard._runtime.decide(ABSENT).reason == "absent"
    with other_session("BEGIN EXCLUSIVE"):
        clock.sleep(5)  # the copy of the rows is too old
        assert guard._runtime.decide(ABSENT).reason == "lease"
        assert guard._runtime.decide(7).reason == "maybe"
    clock.sleep(5)

    assert guard._runtime.decide(ABSENT).reason == "absent"


@database.without_mariadb
def test_a_query_in_a_transaction_of_its_own_is_no_proof(lookups):  # noqa: F811
    """What a transaction does not see may have been committed since it began."""
    Product.objects.filter(pk=7).delete()
    with transaction.atomic(using=database.current):
        assert [queries(lambda: rows.filter(pk=7).first()) for _ in range(2)] == [1, 1]

    assert queries(lambda: rows.filter(pk=7).first()) == 1
    assert queries(lambda: rows.filter(pk=7).first()) == 0
