"""A BEFORE trigger may store another row than the statement gives: keys come from the stored row, or it fences.

Nothing is read from the text of a trigger about it: a function has too many ways to change the row that it returns.
"""

from __future__ import annotations

import pytest
from django.db import connections, migrations, models, transaction
from django.db.migrations.state import ModelState, ProjectState

from bloomguard.guards import Guard, registry
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from bloomguard.writes import introspection
from tests.shop.models import Place, Product
from tests.support import database
from tests.support.guarding import registered
from tests.support.mariadb import MYSQL

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

HELPERS = [
    "CREATE FUNCTION raw_tidy(r shop_place) RETURNS shop_place LANGUAGE sql AS "
    "$$ SELECT r.id, r.country, (r.slug || '-x')::varchar(50) $$",
    "CREATE PROCEDURE raw_change(IN OUT s varchar) LANGUAGE plpgsql AS $$ BEGIN s := s || '-x'; END $$",
]
#: Ways of PL/pgSQL to change the row.
BODIES = {
    "assigned": "BEGIN NEW.slug := NEW.slug || '-x'; RETURN NEW; END",
    "quoted": """BEGIN "new".slug := "new".slug || '-x'; RETURN NEW; END""",
    "qualified": "BEGIN raw_before.new.slug := NEW.slug || '-x'; RETURN NEW; END",
    "called": "BEGIN CALL raw_change(NEW.slug); RETURN NEW; END",
    "returned by a function": "BEGIN RETURN raw_tidy(NEW); END",
    "returned as JSON": "BEGIN RETURN jsonb_populate_record(NEW, jsonb_build_object('slug', NEW.slug || '-x')); END",
}
ON_MARIADB = "SET NEW.slug = CONCAT(NEW.slug, '-x')"


def execute(*statements: str) -> None:
    with connections[database.current].cursor() as cursor:
        for sql in statements:
            cursor.execute(sql)


def create_trigger(body: str, on: str = "shop_place") -> None:
    if database.current == "mariadb":
        for event in ("INSERT", "UPDATE"):
            execute(f"CREATE TRIGGER raw_{event.lower()} BEFORE {event} ON {on} FOR EACH ROW {body}")
    else:
        execute(
            f"CREATE FUNCTION raw_before() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
            f"CREATE TRIGGER raw_before BEFORE INSERT OR UPDATE ON {on} FOR EACH ROW EXECUTE FUNCTION raw_before()",
        )


def drop_triggers() -> None:
    if database.current == "mariadb":
        execute("DROP TRIGGER IF EXISTS raw_insert", "DROP TRIGGER IF EXISTS raw_update")
    else:
        execute("DROP FUNCTION IF EXISTS raw_before CASCADE", "DROP FUNCTION IF EXISTS raw_tidy")
        execute("DROP PROCEDURE IF EXISTS raw_change")


@pytest.fixture
def places(each_database, fresh, clock):
    """A guard of places by their slug; there is one place."""
    Place.objects.create(pk=900, country="de", slug="old")
    with registered(Place, name="place-by-slug", lookup="slug") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
        yield guard


@pytest.fixture(
    params=[pytest.param(("postgresql", body), id=name) for name, body in BODIES.items()]
    + [pytest.param(("mariadb", ON_MARIADB), id="mariadb")]
)
def rewritten(request, fresh, clock):
    """The same guard, and a trigger that changes the slug of each written row."""
    name, body = request.param
    with database.on(name):
        Place.objects.create(pk=900, country="de", slug="old")
        try:
            execute(*HELPERS if name == "postgresql" else ())
            create_trigger(body)
            with registered(Place, name="place-by-slug", lookup="slug") as guard:
                Rebuild(guard, sleep=clock.sleep).run()
                yield guard
        finally:
            drop_triggers()


def denied(guard: Guard) -> list[str]:
    return [slug for slug in Place.objects.values_list("slug", flat=True) if guard.verdict(slug) is Verdict.ABSENT]


def status(guard: Guard) -> str:
    return state.table.current(guard.name).status


def save() -> None:
    place = Place.objects.get(pk=900)
    place.country = "fr"
    place.save(update_fields=["country"])


WAYS = {
    "create": lambda: Place.objects.create(country="it", slug="Roma"),
    "several": lambda: Place.objects.bulk_create([Place(country="it", slug=slug) for slug in ("Roma", "Pisa")]),
    "with a primary key": lambda: Place.objects.create(pk=5, country="it", slug="Roma"),
    "an update of the key": lambda: Place.objects.update(slug="new"),
    "an update of another column": lambda: Place.objects.update(country="fr"),
    "save of another column": save,
}


INSERTS = [WAYS[name] for name in ("create", "several", "with a primary key")]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_key_that_is_stored_is_added(rewritten, way):
    """However the trigger changes the row, the database returns what is stored, and the guard stays in use."""
    way()

    assert Place.objects.filter(slug__endswith="-x").exists()
    assert denied(rewritten) == []
    is_refused = MYSQL and database.current == "mariadb" and way in INSERTS  # it has no RETURNING
    assert status(rewritten) == (FENCED if is_refused else ARMED)


def test_what_the_database_does_not_return_fences(rewritten):
    """For rows that are skipped it returns nothing, at least in Django 5."""
    Place.objects.bulk_create(
        [Place(country="it", slug="Roma"), Place(country="it", slug="Pisa")], ignore_conflicts=True
    )

    assert denied(rewritten) == []


def test_raw_sql_on_another_column_fences(rewritten):
    """It may change every column."""
    execute("UPDATE shop_place SET country = 'fr'")

    assert denied(rewritten) == []
    assert status(rewritten) == FENCED


def test_another_column_is_added_with_a_migration(rewritten):
    """ALTER TABLE fires no trigger."""
    before = ProjectState()
    before.add_model(ModelState.from_model(Place))
    connection = connections[database.current]
    try:
        with connection.schema_editor() as editor:
            after = before.clone()
            operation = migrations.AddField("Place", "extra", models.IntegerField(default=3))
            operation.state_forwards("shop", after)
            operation.database_forwards("shop", editor, before, after)
        assert status(rewritten) == ARMED
    finally:
        execute("ALTER TABLE shop_place DROP COLUMN extra")


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_an_update_that_a_trigger_sends_may_fire_another(places, clock):
    """Another table's trigger changes one column of the guarded table, whose own trigger changes the key."""
    create_trigger(BODIES["quoted"])
    try:
        execute(
            "CREATE FUNCTION raw_after() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN UPDATE shop_place SET country = 'fr'; RETURN NULL; END $$",
            "CREATE TRIGGER raw_after AFTER INSERT ON shop_product FOR EACH ROW EXECUTE FUNCTION raw_after()",
        )
        Rebuild(places, sleep=clock.sleep).run()
        Product.objects.create()
    finally:
        execute("DROP FUNCTION raw_after CASCADE")
        drop_triggers()

    assert denied(places) == []


@pytest.mark.parametrize("each_database", ["mariadb"], indirect=True)
def test_a_trigger_that_changes_primary_keys_fences(each_database, build):
    """MariaDB returns nothing for an UPDATE, and a row that has moved is not found by the key that it had."""
    Product.objects.create(pk=7, name="old")
    create_trigger("SET `NEW`.id = NEW.id + 100", on="shop_product")
    try:
        build("product")
        Product.objects.filter(pk=90007).update(name="new")
        Product.objects.update(name="new")
    finally:
        drop_triggers()

    assert Product.objects.get().pk == 107
    assert registry["product"].verdict(107) is not Verdict.ABSENT


@pytest.mark.parametrize("each_database", ["postgresql"], indirect=True)
def test_functions_of_postgresql_change_rows_too(each_database):
    """A text search's trigger is of PostgreSQL, and belongs to no extension."""
    with transaction.atomic(using=database.current):
        execute(
            "CREATE TABLE raw_words (word text, words tsvector)",
            "CREATE TRIGGER raw_words BEFORE UPDATE ON raw_words FOR EACH ROW EXECUTE FUNCTION "
            "tsvector_update_trigger(words, 'pg_catalog.english', word)",
        )
        found = introspection.load(connections[database.current])
        transaction.set_rollback(True, using=database.current)

    assert found.rewritten == {("raw_words", "update")}
