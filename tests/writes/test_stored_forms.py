"""Primary keys that another program has stored in another form than Django, which then finds no row by them.

Only SQLite's columns take them: PostgreSQL and MariaDB have a type for UUIDs, and MySQL's column is too short.
"""

from __future__ import annotations

import uuid

import pytest
from django.db import connections, models
from django.db.models import Q
from django.db.models.functions import Upper

from bloomguard.rebuild import Rebuild
from bloomguard.state.verdicts import Verdict
from tests.support.database import unseen
from tests.support.guarding import registered

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


class Import(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    text = models.CharField(max_length=50)

    class Meta:
        app_label, db_table = "shop_own", "raw_import"


class ImportedPart(Import):
    code = models.CharField(max_length=50)

    class Meta:
        app_label, db_table = "shop_own", "raw_part"


ROWS = ["one", "two", "gone"]


@pytest.fixture
def imported():
    """Rows whose UUIDs have dashes, in a column of texts."""
    connection = connections["default"]
    with connection.schema_editor() as editor:
        editor.create_model(Import)
        editor.create_model(ImportedPart)
    cursor = unseen(connection)
    for text in ROWS:
        key = str(uuid.uuid4())
        cursor.execute("INSERT INTO raw_import (id, text) VALUES (?, ?)", (key, text))
        cursor.execute("INSERT INTO raw_part (import_ptr_id, code) VALUES (?, ?)", (key, text))
    connection.connection.commit()
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(ImportedPart)
        editor.delete_model(Import)


WRITES = {
    "one": lambda rows, lookup: rows.filter(**{lookup: "one"}).update(**{lookup: "new"}),
    "all": lambda rows, lookup: rows.update(**{lookup: Upper(lookup)}),
    "the same": lambda rows, lookup: rows.filter(**{lookup: "one"}).update(**{lookup: "one"}),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("alive", [Q(), ~Q(text="gone")], ids=["all rows", "alive rows"])
@pytest.mark.parametrize("filter", ["bloom", "cuckoo"])
@pytest.mark.parametrize(("model", "lookup"), [(Import, "text"), (ImportedPart, "text"), (ImportedPart, "code")])
def test_a_row_that_is_found_by_none_of_its_keys_is_not_lost(imported, clock, model, lookup, filter, alive, write):
    """The UPDATE finds it, but no query by the primary key that Django has for it."""
    written = Import if lookup == "text" else ImportedPart
    with registered(model, name="import", lookup=lookup, filter=filter, alive=alive) as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        assert WRITES[write](written.objects, lookup) in (1, len(ROWS))

        there = list(guard._meta.rows().values_list(lookup, flat=True))
        assert len(there) >= 2
        assert Verdict.ABSENT not in map(guard.verdict, there)


def test_a_row_that_outlives_its_delete_keeps_its_key(imported, clock):
    """A trigger may keep it: it is there before and after, but found by no key after."""
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TRIGGER raw_keeps BEFORE DELETE ON raw_import BEGIN SELECT RAISE(IGNORE); END")
    with registered(Import, name="import", lookup="text", filter="cuckoo") as guard:
        Rebuild(guard, sleep=clock.sleep).run()

        Import.objects.filter(text="one")._raw_delete("default")

        assert Import.objects.filter(text="one").exists()
        assert guard.verdict("one") is Verdict.MAYBE
