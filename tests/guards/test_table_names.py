"""A table's name as PostgreSQL stores it, which is not always the one in ``db_table``."""

from __future__ import annotations

import pytest
from django.db import connections, models
from django.test.utils import isolate_apps

from bloomguard.rebuild import Rebuild
from bloomguard.state import table as state
from bloomguard.state.row import ARMED, FENCED
from bloomguard.state.verdicts import Verdict
from tests.support import database
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

LONG = "warehouse_management_inventory_adjustment_history_line_item_detail"
NAMES = {
    "long": (LONG, LONG[:63]),
    "characters of two bytes": ("ä" * 40, "ä" * 31),
    "quoted": ('"Weird"', "Weird"),
    "quoted and long": (f'"{LONG}"', LONG[:63]),
}


def execute(sql):
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def names(request):
    """The name in ``db_table``, and the stored one."""
    return request.param


@pytest.fixture
def guard(names, fresh, transactional_db, clock, monkeypatch):
    """A guard of such a table, with a filter; row 1 exists."""
    monkeypatch.setattr(database, "current", "postgresql")
    with isolate_apps("tests.shop"):
        fields = {"id": models.IntegerField(primary_key=True), "name": models.TextField()}
        meta = type("Meta", (), {"app_label": "shop", "db_table": names[0]})
        model = type("Named", (models.Model,), {"__module__": __name__, "Meta": meta, **fields})
    with connections["postgresql"].schema_editor() as editor:
        editor.create_model(model)
    try:
        model.objects.create(pk=1, name="x")
        with registered(model, name="named") as guard:
            Rebuild(guard, sleep=clock.sleep, probes=1_000).run()
            yield guard
    finally:
        execute(f'DROP TABLE "{names[1]}" CASCADE')


def test_it_is_found(guard):
    """The guard answers for its rows, old and new."""
    guard.model.objects.create(pk=2, name="x")

    assert [guard.verdict(pk) for pk in (1, 2, 3)] == [Verdict.MAYBE, Verdict.MAYBE, Verdict.ABSENT]


@pytest.mark.parametrize("which", [0, 1], ids=["as the model has it", "as stored"])
def test_raw_sql_that_names_it_fences(guard, names, which):
    """PostgreSQL shortens the name in a statement, so both spellings write to the table."""
    execute(f'INSERT INTO "{names[which].strip(chr(34))}" (id, name) VALUES (7, $$x$$)')

    assert state.table.current("named").status == FENCED


def test_a_row_that_a_trigger_changes_is_known(guard, names):
    """The catalogue has the trigger under the stored name, and the ORM's INSERT the one of the model."""
    execute(
        "CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := NEW.id + 1; RETURN NEW; END $$"
    )
    try:
        execute(f'CREATE TRIGGER changes BEFORE INSERT ON "{names[1]}" FOR EACH ROW EXECUTE FUNCTION change()')
        guard.model.objects.create(pk=5, name="x")
    finally:
        execute("DROP FUNCTION change CASCADE")

    assert guard.verdict(6) is Verdict.MAYBE


def test_a_trigger_that_writes_to_it_fences(guard, names):
    """What the catalogue says of the stored name goes for the guard."""
    execute("CREATE TABLE source (id integer)")
    try:
        execute(
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN INSERT INTO \"{names[1]}\" (id, name) VALUES (NEW.id, 'x'); RETURN NEW; END $$"
        )
        execute("CREATE TRIGGER fills AFTER INSERT ON source FOR EACH ROW EXECUTE FUNCTION fill()")
        assert state.table.current("named").status == ARMED
        execute("INSERT INTO source VALUES (7)")
    finally:
        execute("DROP TABLE source CASCADE")
        execute("DROP FUNCTION IF EXISTS fill")

    assert state.table.current("named").status == FENCED


def test_a_view_of_it_fences(guard, names):
    """The catalogue has the stored name of what the view shows."""
    execute(f'CREATE VIEW shown AS SELECT id, name FROM "{names[1]}"')
    execute("INSERT INTO shown (id, name) VALUES (7, 'x')")

    assert state.table.current("named").status == FENCED
