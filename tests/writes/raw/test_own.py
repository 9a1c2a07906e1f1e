"""Which statements are the ORM's own: the texts that its compiler makes, and nothing that is sent besides."""

from __future__ import annotations

import pytest
from django.db import connections, models, transaction
from django.test.utils import isolate_apps

from bloomguard.guards import registry
from bloomguard.rebuild import Rebuild
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article
from tests.support import database
from tests.support.guarding import registered

from .sending import execute, on_postgresql, status

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
everywhere = pytest.mark.parametrize("each_database", ["postgresql", "sqlite", "mariadb"], indirect=True)


class Moving(models.CharField):
    """Moves the row that has its value already."""

    def pre_save(self, instance, add):
        execute("UPDATE raw_moving SET slug = 'moved' WHERE slug = %s", [instance.slug])
        return instance.slug


class Blank(models.CharField):
    """Stores an empty text as NULL."""

    def get_prep_value(self, value):
        return super().get_prep_value(value) or None

    def from_db_value(self, value, expression, connection):
        return value or ""


@everywhere
def test_a_row_with_a_null_has_a_key_if_the_field_reads_one_as_a_text(each_database, fresh, clock):
    """A lookup of that text finds it, so ON DELETE SET NULL brings up a key."""
    with isolate_apps("tests.shop"):
        meta = type("Meta", (), {"app_label": "shop", "db_table": "raw_owned", "managed": False})
        fields = {"code": Blank(max_length=50, null=True), "__module__": __name__, "Meta": meta}
        model = type("Owned", (models.Model,), fields)
    execute("CREATE TABLE raw_owner (code varchar(50) PRIMARY KEY)")
    execute(
        "CREATE TABLE raw_owned (id integer PRIMARY KEY, code varchar(50), "
        "FOREIGN KEY (code) REFERENCES raw_owner (code) ON DELETE SET NULL)"
    )
    try:
        execute("INSERT INTO raw_owner VALUES ('a')")
        execute("INSERT INTO raw_owned VALUES (1, 'a')")
        with registered(model, name="owned", lookup="code", normalize=lambda self, text: text) as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            execute("DELETE FROM raw_owner")
            assert model.objects.filter(code="").exists()
            assert guard.verdict("") is not Verdict.ABSENT
    finally:
        execute("DROP TABLE raw_owned")
        execute("DROP TABLE raw_owner")


@everywhere
@pytest.mark.parametrize("way", ["create", "bulk_create", "save", "bulk_update"])
@pytest.mark.parametrize("atomic", [True, False])
def test_raw_sql_of_a_field_is_raw(each_database, fresh, clock, way, atomic):
    """Sent by ``pre_save``, while the statement is compiled."""
    with isolate_apps("tests.shop"):
        options = {"app_label": "shop", "db_table": "raw_moving"}
        fields = {"slug": Moving(max_length=50, unique=True), "__module__": __name__}
        model = type("Moved", (models.Model,), {**fields, "Meta": type("Meta", (), options)})
    with connections[database.current].schema_editor() as editor:
        editor.create_model(model)
    try:
        model.objects.create(slug="a")
        other = model.objects.create(slug="b")
        with registered(model, name="moving", lookup="slug") as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            if atomic:
                with transaction.atomic(using=database.current):
                    write(model, other, way)
            else:
                write(model, other, way)

            stored = set(model.objects.values_list("slug", flat=True))
            assert [slug for slug in stored if guard.verdict(slug) is Verdict.ABSENT] == []
            if way != "bulk_update":  # which calls no pre_save
                assert "moved" in stored
                assert status("moving") == FENCED
    finally:
        execute("DROP TABLE raw_moving")


def write(model, other, way):
    if way == "create":
        model.objects.create(slug="a")
    elif way == "bulk_create":
        model.objects.bulk_create([model(slug="a"), model(slug="c")])
    else:
        other.slug = "a"
        if way == "save":
            other.save(force_update=True)
        else:
            other.slug = "d"
            model.objects.bulk_update([other], ["slug"])


@everywhere
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("kind", ["create", "update"])
def test_raw_sql_of_a_wrapper_is_raw(each_database, build, atomic, kind):
    """Also if it has the text of the ORM's own statement."""
    connection, texts = connections[database.current], []
    old = Article.objects.create(slug="old")
    build("article")

    def wrapper(run, sql, params, many, context):
        if sql.startswith(("INSERT", "UPDATE")) and "shop_article" in sql and not texts:
            texts.append(sql)
            audit = tuple({"new": "audit", "old": "other"}.get(each, each) for each in params)
            with connection.cursor() as cursor:
                if kind == "create":
                    cursor.execute(sql, audit)
                else:
                    cursor.execute("INSERT INTO shop_article (slug, deleted) VALUES ('audit', %s)", [False])
        return run(sql, params, many, context)

    def send():
        with connection.execute_wrapper(wrapper):
            if kind == "create":
                Article.objects.create(slug="new")
            else:
                Article.objects.filter(pk=old.pk).update(slug="new")

    if atomic:
        with transaction.atomic(using=database.current):
            send()
    else:
        send()

    assert texts
    assert set(Article.objects.values_list("slug", flat=True)) >= {"new", "audit"}
    assert registry["article"].verdict("audit") is not Verdict.ABSENT
    assert registry["article"].verdict("new") is not Verdict.ABSENT
    assert status("article") == FENCED


@everywhere
@pytest.mark.parametrize("comment", ["{} /* a note; it's one */", "/* route */ {}", "{} -- route"])
def test_a_wrapper_may_comment_the_orms_statements(each_database, build, comment):
    """They are the ORM's own all the same."""
    connection = connections[database.current]
    Article.objects.create(slug="old")
    build("article")

    def wrapper(run, sql, *rest):
        return run(comment.format(sql), *rest)

    connection.execute_wrappers.insert(0, wrapper)
    try:
        Article.objects.create(slug="new")
        Article.objects.filter(slug="old").update(slug="newer")
        Article.objects.bulk_create([Article(slug="one"), Article(slug="two")])
    finally:
        connection.execute_wrappers.remove(wrapper)

    assert status("article") == ARMED
    for slug in ("new", "newer", "one", "two"):
        assert registry["article"].verdict(slug) is Verdict.MAYBE


PARTITIONED = [
    "CREATE TABLE raw_event (id integer, slug varchar(50) NOT NULL, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE raw_event_1 PARTITION OF raw_event FOR VALUES FROM (0) TO (1000)",
]
INHERITED = [
    "CREATE TABLE raw_event (id integer PRIMARY KEY, slug varchar(50) NOT NULL)",
    "CREATE TABLE raw_event_1 () INHERITS (raw_event)",
]
SHOUT = [
    "CREATE FUNCTION raw_shout() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN NEW.slug = upper(NEW.slug); RETURN NEW; END $$",
    "CREATE TRIGGER raw_shouts BEFORE INSERT OR UPDATE ON raw_event_1 FOR EACH ROW EXECUTE FUNCTION raw_shout()",
]


@on_postgresql
@pytest.mark.parametrize("tables", [PARTITIONED, INHERITED], ids=["partitioned", "inherited"])
@pytest.mark.parametrize("lookup", ["id", "slug"])
@pytest.mark.parametrize("shouts", [False, True])
def test_the_orms_rows_in_partitions_leave_the_guard_in_use(each_database, fresh, clock, tables, lookup, shouts):
    """They are added once, as they are stored, also if a trigger of the partition changes them."""
    with isolate_apps("tests.shop"):
        meta = type("Meta", (), {"app_label": "shop", "db_table": "raw_event", "managed": False})
        fields = {"id": models.IntegerField(primary_key=True), "slug": models.CharField(max_length=50)}
        model = type("Event", (models.Model,), {**fields, "__module__": __name__, "Meta": meta})
    for sql in [*tables, *(SHOUT if shouts else [])]:
        execute(sql)
    try:
        execute("INSERT INTO raw_event_1 VALUES (1, 'old')")
        with registered(model, name="event", lookup=lookup) as guard:
            Rebuild(guard, sleep=clock.sleep).run()
            model.objects.create(id=5, slug="five")
            model.objects.bulk_create([model(id=6, slug="six"), model(id=7, slug="seven")])
            model.objects.filter(id=1).update(slug="new")
            model.objects.filter(id=5).update(id=8)

            assert status("event") == ARMED
            stored = set(model.objects.values_list(lookup, flat=True))
            assert len(stored) == 4
            assert [value for value in stored if guard.verdict(value) is Verdict.ABSENT] == []
    finally:
        execute("DROP TABLE raw_event CASCADE")
        execute("DROP FUNCTION IF EXISTS raw_shout")
