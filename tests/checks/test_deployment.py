"""``check --deploy``: every guard has a filter that can answer, or it is said why not."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from django.core.checks import run_checks
from django.db import connections

from bloomguard.checks import databases
from bloomguard.exceptions import RebuildError
from bloomguard.filters import codec
from bloomguard.guards import registry
from bloomguard.models import GuardState
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from tests.conftest import Counting, forget
from tests.shop.models import Product
from tests.support import database
from tests.support.guarding import make_guard, registered
from tests.support.roles import as_role

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock"),
]


@pytest.fixture
def mine(monkeypatch):
    """The one guard there is, of products."""
    guard = make_guard(Product, name="mine", filter="bloom")
    monkeypatch.setattr(registry, "_guards", {})
    registry.add(guard)
    yield guard
    registry.changed()


@pytest.fixture
def built(mine, clock):
    """The same with 1,000 rows and a filter for 1,500."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(1, 1_001))
    Rebuild(mine, sleep=clock.sleep).run()
    return mine


def messages(**options):
    """What the checks of this package say with ``--deploy``, as ``(id, message, hint)``; not about ``@guarded``."""
    found = run_checks(tags=["bloomguard"], include_deployment_checks=True, **options)
    return [(each.id, each.msg, each.hint) for each in found if each.id != "bloomguard.W043"]


@pytest.mark.usefixtures("each_database")
def test_a_filter_that_answers_is_no_matter(built):
    """A guard that is armed, with room left, is not mentioned."""
    assert messages() == []


@pytest.mark.usefixtures("each_database")
def test_a_guard_that_was_never_built(mine):
    """Without a row every request passes, which nobody would notice."""
    ((found, message, hint),) = messages()

    assert found == "bloomguard.W030"
    assert message == "the guard 'mine': it has no filter yet, so every request passes."
    assert hint == "Run manage.py rebuild_filter mine."


@pytest.mark.usefixtures("each_database")
def test_a_row_of_a_guard_that_has_another_name_now(built):
    """Writes wait for a guard that only another version may have."""
    GuardState.objects.create(name="former", active="a")

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W044"
    assert message.startswith("the state row 'former' is of no guard of this project")
    assert "give it name = 'former'" in hint


@pytest.mark.usefixtures("each_database")
def test_a_row_of_the_last_guard_which_was_removed(mine, monkeypatch):
    """Its writes wait too, though the project has no guard any more; without such a row nothing is said."""
    monkeypatch.setattr(registry, "_guards", {})
    registry.changed()
    assert messages() == []

    GuardState.objects.create(name="former", active="a")

    assert [found for found, _, _ in messages()] == ["bloomguard.W044"]


@pytest.mark.usefixtures("each_database")
def test_state_rows_that_no_guard_needs_may_be_missing(mine, monkeypatch):
    """A project may install bloomguard, and migrate it with its first guard."""
    monkeypatch.setattr(registry, "_guards", {})
    registry.changed()
    monkeypatch.setattr(GuardState._meta, "db_table", "no_such_table")

    assert messages() == []


def test_a_guard_whose_first_build_never_ended(mine):
    """A row that names no active generation is as good as none."""
    GuardState.objects.create(name="mine", building="a")

    ((found, _, _),) = messages()

    assert found == "bloomguard.W030"


@pytest.mark.usefixtures("each_database")
def test_a_guard_that_is_fenced(built):
    """The time and the reason of the fence are told, with one full stop at its end."""
    states.table.fence("mine", "a write was not proved.")

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W031"
    since = f"{states.table.row('mine').fenced_at:%Y-%m-%d %H:%M} UTC"
    assert message == f"the guard 'mine': it is fenced since {since}, so every request passes: a write was not proved."
    assert "rebuild_filter mine" in hint


def test_a_filter_with_more_keys_than_room(built):
    """What a filter promises holds up to its capacity; both figures are told."""
    Product.objects.bulk_create(Product(pk=pk) for pk in range(2_000, 4_000))

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W032"
    assert " keys, but has a capacity of 1,500: " in message
    assert "more than the configured 0.10% of absent IDs pass" in message
    assert "rebuild_filter mine, which builds a larger filter" in hint


def test_a_filter_that_its_guard_keeps_too_small(built, clock):
    """A rebuild alone would make no more room than the guard's own ``capacity``, so the hint names that."""
    built.capacity = 1_000
    Rebuild(built, sleep=clock.sleep).run()
    Product.objects.bulk_create(Product(pk=pk) for pk in range(2_000, 3_000))

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W032"
    assert "a capacity of 1,000" in message
    assert hint.startswith("Raise its capacity, which is 1,000, or remove the line; then run ")


def test_a_filter_of_a_newer_release(built):
    """A format that this release cannot read is told with both versions."""
    state = states.table.current("mine")
    path = built._runtime.active_filter.store._file("mine", state.active)
    forget()
    data = bytearray(path.read_bytes())
    struct.pack_into(">H", data, 16, codec.VERSION + 1)
    count = struct.unpack_from(">H", data, 22)[0]
    end = codec._FIXED.size + 8 * count
    struct.pack_into(">I", data, end, crc32(data[:end]))
    path.write_bytes(data)

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W033"
    assert f"format version {codec.VERSION + 1}; this release reads version {codec.VERSION}" in message
    assert hint.endswith("wait until the older one has ended.")


def test_a_folder_that_is_not_used_is_reported_once(built):
    """A rebuild would be refused too, so no guard is said to need one."""
    built._runtime.active_filter.store.path.chmod(0o777)
    forget()

    ((found, message, _),) = messages()

    assert found == "bloomguard.W037"
    assert "could have been written by others" in message


def test_a_filter_of_another_secret(built, settings):
    """What was built with a key that the settings no longer have is of no use."""
    settings.SECRET_KEY = "quite another"
    forget()

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W033"
    assert "another SECRET_KEY" in message
    assert "rebuild_filter mine" in hint


@pytest.mark.usefixtures("each_database")
def test_state_rows_that_cannot_be_read(mine):
    """Before ``migrate``, one message says so, whatever the number of guards, and how to run it for their database."""
    with connections[database.current].schema_editor() as editor:
        editor.delete_model(GuardState)
    try:
        ((found, message, hint),) = messages()
    finally:
        with connections[database.current].schema_editor() as editor:
            editor.create_model(GuardState)

    assert found == "bloomguard.W034"
    assert f"the state rows cannot be read from the database {database.current!r}" in message
    assert "bloomguard_guardstate" in message
    where = "" if database.current == "default" else f" --database {database.current}"
    assert f"Run manage.py migrate bloomguard{where} if you have not" in hint
    assert "lead to a primary" in hint  # the rows of a standby are not read either


@database.with_roles
def test_a_server_that_does_not_answer_is_no_want_of_rights(each_database, mine, monkeypatch):
    """As in CI: the hint names the settings, and no migration or GRANT."""
    monkeypatch.setitem(connections[database.current].settings_dict, "HOST", "/nowhere")
    connections[database.current].close()

    ((found, message, hint),) = messages()

    assert found == "bloomguard.W034"
    assert "/nowhere" in message
    assert hint.startswith(f"Start the server, or correct DATABASES[{database.current!r}]")
    assert "GRANT" not in hint


@database.with_roles
@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        ("SELECT, INSERT, UPDATE", ""),
        ("SELECT, INSERT", "UPDATE of the state rows is refused"),
        ("SELECT", "INSERT of the state rows is refused"),
        ("INSERT, UPDATE", "the state rows cannot be read"),
        ("", "the state rows cannot be read"),
    ],
)
def test_a_role_without_rights_on_the_state_rows(each_database, built, rights, expected):
    """As if another role had run ``migrate``: the message has the database's error, and the hint the GRANT."""
    with as_role(bloomguard_guardstate=rights):
        found = messages()

    if not expected:
        assert found == []
        return
    ((identifier, message, hint),) = found
    assert identifier == ("bloomguard.W034" if "read" in expected else "bloomguard.W042")
    assert message.startswith(expected)
    assert "denied" in message
    assert "GRANT SELECT, INSERT, UPDATE ON bloomguard_guardstate TO" in hint


@database.with_roles
@pytest.mark.parametrize("rights", ["INSERT, UPDATE", "SELECT (name), INSERT, UPDATE", ""])
def test_a_role_that_may_not_read_the_rows(each_database, mine, rights):
    """A rebuild would end with the same message; what the role may not see is not reported in other words."""
    with as_role(shop_product=rights):
        found = [each for each in messages() if each[0] != "bloomguard.W030"]
        with pytest.raises(RebuildError) as raised:
            Rebuild(mine).refuse()

    ((identifier, message, hint),) = found
    assert identifier == "bloomguard.W136"
    assert "weak" in message
    assert "shop_product" in message
    assert hint.startswith("GRANT SELECT ON")
    assert str(raised.value) == f"mine: {message.partition(': ')[2]} {hint}"


def test_a_plain_check_asks_no_database(mine, django_assert_num_queries, monkeypatch):
    """Without ``--deploy`` nothing is asked, and with ``--database`` only what is named."""
    monkeypatch.setattr(states.table, "connection", Counting())
    with django_assert_num_queries(0):
        plain = [each for each in run_checks(tags=["bloomguard"]) if each.id != "bloomguard.W043"]
        elsewhere = messages(databases=["postgresql"])

    assert states.table.connection.statements == []
    assert plain == []
    assert elsewhere == []
    assert [found for found, _, _ in messages(databases=["default"])] == ["bloomguard.W030"]


@pytest.fixture
def postgresql(monkeypatch):
    """The test runs on PostgreSQL."""
    monkeypatch.setattr(database, "current", "postgresql")


def trigger_of(body, on="shop_article", when="AFTER INSERT"):
    """Statements that make a trigger ``wild``, and those that undo it, on the test's database."""
    if database.current == "default":
        return [f"CREATE TRIGGER wild {when} ON {on} BEGIN {body}; END"], ["DROP TRIGGER wild"]
    return [
        f"CREATE FUNCTION wild() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$",
        f"CREATE TRIGGER wild {when} ON {on} FOR EACH ROW EXECUTE FUNCTION wild()",
    ], [f"DROP TRIGGER wild ON {on}", "DROP FUNCTION wild()"]


@pytest.fixture
def trigger():
    """``trigger(body)`` is there until the test ends."""
    undone = []

    def run(statements):
        with connections[database.current].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def make(*args, **options):
        made, undo = trigger_of(*args, **options)
        undone.extend(undo)
        run(made)

    yield make
    run(undone)


INSERTS = "INSERT INTO shop_product (id, name) VALUES (NEW.id, 'x')"


@pytest.mark.usefixtures("each_database")
@database.without_mariadb
def test_a_trigger_that_makes_rows(mine, trigger):
    """A row that a trigger makes is in no filter, so the trigger and its table are named."""
    trigger(INSERTS)

    ((found, message, hint),) = [each for each in messages() if each[0] != "bloomguard.W030"]

    assert found == "bloomguard.W035"
    assert f"the trigger 'wild' on 'shop_article' in the database {database.current!r} may write its keys" in message
    assert "verify_filter --repair" in hint


def test_shards_are_looked_at_if_they_are_named(settings):
    """There may be hundreds of them."""
    settings.DATABASE_ROUTERS = []
    found = {}
    with registered(Product, name="sharded", scope="database") as guard:
        for named in (None, ["default"], ["default", "postgresql"], ["mariadb"]):
            found[str(named)] = [alias for each, alias in databases._guards_in(named) if each is guard]

    assert found["None"] == found["['default']"] == ["default"]
    assert found["['default', 'postgresql']"] == ["default", "postgresql"]
    assert found["['mariadb']"] == (["mariadb"] if "mariadb" in connections else [])


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize(
    "body", ["UPDATE shop_product SET name = 'x'", "UPDATE shop_place SET slug = 'x'", "DELETE FROM shop_product"]
)
@database.without_mariadb
def test_a_trigger_that_writes_no_key(mine, trigger, body):
    """Other columns, other tables and deletes make no absent row present."""
    trigger(body, when="AFTER UPDATE")

    assert [found for found, _, _ in messages()] == ["bloomguard.W030"]


@pytest.mark.usefixtures("postgresql")
@pytest.mark.parametrize("column", ["id", "name"])
def test_a_trigger_that_changes_a_row_before_it_is_written(mine, trigger, column):
    """Nothing is reported: the keys of what Django wrote are read from what is stored."""
    trigger(f"NEW.{column} := NEW.{column}", on="shop_product", when="BEFORE INSERT")

    assert [found for found, _, _ in messages() if found == "bloomguard.W035"] == []


def test_a_store_in_memory_is_reported_instead_of_its_filters(mine, settings):
    """No other process has them, so that a shell can neither read nor build one."""
    settings.BLOOMGUARD = {"STORES": {"default": {"BACKEND": "bloomguard.stores.memory.MemoryStore"}}}

    never, store = sorted(messages())
    hint = "Let the process of the site call call_command('rebuild_filter', 'mine')."
    assert (store[0], never[0], never[2]) == ("bloomguard.W045", "bloomguard.W030", hint)
    assert "the store 'default' is in the memory of one process" in store[1]

    GuardState.objects.create(name="mine", active="a", identity="memory:of-the-site")
    assert [found for found, _, _ in messages()] == ["bloomguard.W045"]


def test_a_store_whose_client_cannot_be_created_is_reported_once(mine, no_cluster):
    """Its servers do not answer: that is W021, and no check ends with a traceback."""
    (found,) = messages()
    assert (found[0], "CACHES['shared'] cannot be created" in found[1]) == ("bloomguard.W021", True)
