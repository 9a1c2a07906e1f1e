"""Several models on one table: their fields convert values in other ways, and spell columns in another way."""

from __future__ import annotations

import uuid
from contextlib import nullcontext

import pytest
from django.apps import apps
from django.db import connections, models
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import Q
from django.test.utils import isolate_apps

from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes.tables import same_fields, tracked_tables
from tests.shop.models import Article, Bargain, Order, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import EXACT, MYSQL

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

#: No sequence gives its number, and its slug is of all kinds.
FIRST, OLD = -1, uuid.UUID(int=1).hex


class Wrapped(models.CharField):
    """A project's field, whose values are objects."""

    def __init__(self, *args, mark="", **kwargs):
        self.mark = mark
        super().__init__(*args, **kwargs)

    def from_db_value(self, value, *rest):
        return ("wrapped", value)

    def get_prep_value(self, value):
        return value[1] if isinstance(value, tuple) else value


def twin(name, *, historical=False, **fields):
    """A second model of the table of articles: one that is unmanaged, or a migration's."""
    fields.setdefault("deleted", models.BooleanField(default=False))
    options = {"db_table": "shop_article", "managed": False}
    if historical:
        fields = {"id": models.BigAutoField(primary_key=True), **fields}
        made = ProjectState()
        made.add_model(ModelState("past", name, list(fields.items()), options))
        return made.apps.get_model("past", name)
    meta = type("Meta", (), {"app_label": "twins", **options})
    return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **fields})


@pytest.fixture(autouse=True)
def no_twins():
    """A test's models are the project's own while it runs: those of ``isolate_apps`` would count as a migration's."""
    yield
    apps.all_models.pop("twins", None)
    apps.clear_cache()


@pytest.fixture(params=["bloom", "cuckoo"])
def armed(request, each_database, fresh, clock):
    """A guard of articles by slug, with a filter; there is one article."""
    Article.objects.create(pk=FIRST, slug=OLD)
    with registered(Article, name="twin", lookup="slug", alive=Q(deleted=False), filter=request.param) as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        yield guard


def execute(sql):
    with connections[database.current].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def denied(guard):
    """The slugs of living rows that the guard denies."""
    stored = [slug for (slug,) in execute("SELECT slug FROM shop_article WHERE NOT deleted")]
    assert stored
    return [slug for slug in stored if guard.verdict(slug) is Verdict.ABSENT]


def status(name="twin"):
    return state.table.current(name).status


def upsert(model, value):
    model.objects.bulk_create(
        [model(id=FIRST, slug=value)],
        update_conflicts=True,
        unique_fields=database.conflicting("id"),
        update_fields=["slug"],
    )


def bulk_update(model, value):
    row = model.objects.get(id=FIRST)
    row.slug = value
    model.objects.bulk_update([row], ["slug"])


def save(model, value):
    row = model.objects.get(id=FIRST)
    row.slug = value
    row.save()


WAYS = {
    "create": lambda model, value: model.objects.create(slug=value),
    "bulk_create": lambda model, value: model.objects.bulk_create([model(slug=value)]),
    "upsert": upsert,
    "update": lambda model, value: model.objects.update(slug=value),
    "bulk_update": bulk_update,
    "save": save,
    "update_or_create": lambda model, value: model.objects.update_or_create(id=FIRST, defaults={"slug": value}),
}


@pytest.mark.parametrize("historical", [False, True], ids=["unmanaged", "historical"])
@pytest.mark.parametrize("kind", ["uuid", "custom", "column"])
def test_a_second_model_may_convert_otherwise(armed, historical, kind):
    """The key is that of what is stored, as the guard's own model reads it."""
    if kind == "column" and database.current == "postgresql":
        pytest.skip("its names are exact")
    field, value = {
        "uuid": (models.UUIDField(), lambda number: uuid.UUID(int=100 + number)),
        "custom": (Wrapped(max_length=50), "new-{}".format),
        "column": (models.CharField(max_length=50, db_column="SLUG"), "new-{}".format),
    }[kind]
    other = twin("Other", historical=historical, slug=field)
    for number, (name, way) in enumerate(WAYS.items()):
        if name == "upsert" and MYSQL and database.current == "mariadb":
            continue  # there it fences
        way(other, value(number))  # another one each time, which the filter does not have yet

        assert denied(armed) == [], name
        assert status() == ARMED, name
        Article.objects.exclude(pk=FIRST).delete()


@pytest.mark.parametrize(
    ("field", "is_alike"),
    [
        (models.TextField(), True),
        (models.EmailField(max_length=9), True),
        (models.UUIDField(), False),
        (models.IntegerField(), False),
        (models.JSONField(), False),
        (Wrapped(max_length=9), False),
        (models.SlugField(db_column="SLUG"), False),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, models.Field) else "",
)
def test_fields_of_django_that_convert_alike_are_used_as_they_are(field, is_alike):
    """All others are read back by the primary key."""
    found = {each.guard.name: each for each in tracked_tables(twin("Other", slug=field))}["article"]

    assert (found.link == "") is is_alike
    assert [each.name for each in found.fields] == (["slug"] if is_alike else ["id"])


@pytest.mark.parametrize(
    ("one", "other", "is_alike"),
    [
        (Wrapped(max_length=9), Wrapped(max_length=9), False),
        (
            models.DecimalField(max_digits=9, decimal_places=2),
            models.DecimalField(max_digits=9, decimal_places=2),
            False,
        ),
        (models.IntegerField(), models.BigAutoField(primary_key=True), True),
        (models.IntegerField(), models.BooleanField(), False),
        (models.DateTimeField(), models.DateField(), False),
        (models.BinaryField(max_length=9), models.CharField(max_length=9), False),
        (models.ForeignKey(Product, models.CASCADE), models.BigIntegerField(), True),
        (models.ForeignKey(Order, models.CASCADE), models.BigIntegerField(), False),
        (models.ForeignKey(Order, models.CASCADE), models.UUIDField(), True),
    ],
)
@isolate_apps("tests.shop")
def test_two_fields_convert_alike_if_both_are_djangos_and_of_one_kind(one, other, is_alike):
    """Those of the project may depend on any attribute, decimals on their places."""
    for number, field in enumerate((one, other)):
        meta = type("Meta", (), {"app_label": "shop"})
        type(f"Model{number}", (models.Model,), {"__module__": __name__, "Meta": meta, "slug": field})
        field.column = "slug"

    assert (same_fields([one], [other]) == (other,)) is is_alike
    assert (same_fields([other], [one]) == (one,)) is is_alike


def test_a_proxy_has_the_fields_of_its_model(each_database):
    """Its own statements cost nothing more."""
    (found,) = (each for each in tracked_tables(Bargain) if each.guard.name == "product")

    assert (found.link, found.fields) == ("", (Product._meta.pk,))


# -- another primary key


@pytest.fixture(params=["with the guard's key", "without it"])
def by_slug(request):
    """A second model whose primary key is the slug; it may have the guard's primary key as another field."""
    more = {"id": models.BigIntegerField(default=5_000)} if request.param == "with the guard's key" else {}
    return twin("BySlug", slug=models.CharField(max_length=50, primary_key=True), **more)


def test_another_primary_key_is_not_taken_for_the_guards(armed, by_slug):
    """A row is found by the guard's primary key, or the guard is fenced."""
    by_slug.objects.create(slug="new")
    by_slug.objects.filter(slug="new").update(slug="newer")
    by_slug.objects.filter(slug="newer").update(deleted=True)
    by_slug.objects.filter(slug="newer").update(deleted=False)

    assert denied(armed) == []


def test_a_second_model_with_another_primary_key_deletes(armed, by_slug):
    """The statement is sent as without bloomguard, and forgets no other row's key."""
    Article.objects.create(pk=2, slug="1")
    by_slug.objects.filter(slug=OLD).delete()

    assert list(Article.objects.values_list("slug", flat=True)) == ["1"]
    assert denied(armed) == []


def test_an_integer_for_another_primary_key_finds_no_wrong_row(each_database, fresh, clock):
    """On MariaDB the changed rows are found by the primary key of the statement's model."""
    execute(
        "CREATE TABLE twin_table (id integer PRIMARY KEY, number integer NOT NULL UNIQUE, name varchar(9) NOT NULL)"
    )
    try:

        class Mine(models.Model):
            number = models.IntegerField()
            name = models.CharField(max_length=9, db_collation=EXACT)

            class Meta:
                app_label, db_table, managed = "twins", "twin_table", False

        class Other(models.Model):
            id = models.IntegerField()
            number = models.IntegerField(primary_key=True)
            name = models.CharField(max_length=9)

            class Meta:
                app_label, db_table, managed = "twins", "twin_table", False

        if database.current == "mariadb":
            execute(f"ALTER TABLE twin_table MODIFY name varchar(9) COLLATE {EXACT} NOT NULL")
        Mine.objects.create(id=1, number=2, name="a")
        Mine.objects.create(id=2, number=1, name="b")
        with registered(Mine, name="twin", lookup="name") as guard:
            Rebuild(guard, sleep=clock.sleep).run()

            Other.objects.filter(number=2).update(name="new")

            assert guard.verdict("new") is not Verdict.ABSENT
    finally:
        execute("DROP TABLE twin_table")


@pytest.mark.parametrize("kind", ["uuid", "custom", "by slug"])
def test_signals_of_a_second_model(each_database, fresh, clock, by_slug, kind):
    """A guard that works by signals reads the row back, or is fenced."""
    slug, value = {"uuid": (models.UUIDField(), uuid.UUID(int=7)), "custom": (Wrapped(max_length=50), "new")}.get(
        kind, (None, "new")
    )
    other = by_slug if slug is None else twin("Other", slug=slug)
    Article.objects.create(slug=OLD)
    with registered(Article, name="twin", lookup="slug", sync="signals") as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        other.objects.create(slug=value)

        assert denied(guard) == []
        is_unknown = kind == "by slug" and not any(field.name == "id" for field in by_slug._meta.fields)
        assert status() == (FENCED if is_unknown else ARMED)


# -- other names of the table


@pytest.mark.parametrize("way", ["create", "update", "upsert"])
@pytest.mark.parametrize("name", ["twin_view", "SHOP_ARTICLE", 'public"."shop_article'])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_view_or_another_spelling_of_the_table_fences(armed, way, name, is_guarded):
    """The ORM writes to it under a name that is not the guard's, but perhaps another guard's."""
    if name == "SHOP_ARTICLE" and database.current != "default":
        pytest.skip("another table")
    if name.startswith("public") and database.current != "postgresql":
        pytest.skip("its tables have no schema of this name")
    if name == "twin_view" and database.current == "default":
        pytest.skip("its views are not writable")
    if name == "twin_view":
        execute("CREATE VIEW twin_view AS SELECT * FROM shop_article")
    try:

        class Window(models.Model):
            slug = models.CharField(max_length=50)
            deleted = models.BooleanField(default=False)

            class Meta:
                app_label, db_table, managed = "twins", name, False

        with registered(Window, name="window", lookup="slug") if is_guarded else nullcontext():
            WAYS[way](Window, "new")
            assert denied(armed) == []
    finally:
        if name == "twin_view":
            execute("DROP VIEW twin_view")


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["bloom", "cuckoo"])
def test_a_name_with_the_schema_on_sqlite(kind, each_database, fresh, clock):
    """Its RETURNING takes no such name, so a write is sent as it is, and fences if it needs one."""

    class Ware(models.Model):
        code = models.CharField(max_length=50, primary_key=True)
        slug = models.CharField(max_length=50, unique=True)

        class Meta:
            app_label, db_table, managed = "twins", 'main"."ware', False

    def upsert():
        rows, columns = [Ware(code="b", slug="d")], {"unique_fields": ["code"], "update_fields": ["slug"]}
        Ware.objects.bulk_create(rows, update_conflicts=True, **columns)

    execute("CREATE TABLE ware (code varchar(50) PRIMARY KEY, slug varchar(50) UNIQUE)")
    try:
        Ware.objects.create(code="a", slug="a")
        with registered(Ware, name="ware", lookup="slug", filter=kind) as guard:
            for slug, write in {
                "b": lambda: Ware.objects.create(code="b", slug="b"),
                "c": lambda: Ware.objects.filter(code="b").update(slug="c"),
                "d": upsert,
            }.items():
                Rebuild(guard, sleep=clock.sleep).run()
                assert guard.verdict(slug) is Verdict.ABSENT
                write()

                assert Ware.objects.get(code="b").slug == slug
                assert guard.verdict(slug) is not Verdict.ABSENT
    finally:
        execute("DROP TABLE ware")


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("way", ["create", "update", "upsert"])
def test_two_tables_of_one_name(way, each_database, fresh, clock):
    """In two schemas: a write of one by the ORM disables no guard of the other."""

    def model(name, table):
        meta = type("Meta", (), {"app_label": "twins", "db_table": table, "managed": False})
        fields = {"slug": models.CharField(max_length=50, unique=True), "deleted": models.BooleanField(default=False)}
        return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **fields})

    for schema in ("one", "two"):
        execute(f"CREATE SCHEMA {schema}")
        execute(f"CREATE TABLE {schema}.item (LIKE shop_article INCLUDING ALL)")
    try:
        one, two = model("One", 'one"."item'), model("Two", 'two"."item')
        with (
            registered(one, name="one", lookup="slug") as guard,
            registered(two, name="two", lookup="slug") as other,
        ):
            for each in (guard, other):
                each.model.objects.create(slug=OLD)
                Rebuild(each, sleep=clock.sleep).run()
            WAYS[way](two, "new")

            assert guard.verdict("new") is Verdict.ABSENT
            assert other.verdict("new") is not Verdict.ABSENT
    finally:
        execute("DROP SCHEMA one, two CASCADE")
