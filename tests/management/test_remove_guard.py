"""``manage.py remove_guard``: nothing is left of a guard that is gone, and nobody else loses anything."""

from __future__ import annotations

import io
import json
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection
from django.utils import timezone

from bloomguard.exceptions import StoreUnavailable
from bloomguard.models import GuardState, GuardTask
from bloomguard.rebuild import Rebuild
from bloomguard.state import table as states
from bloomguard.stores import stores
from bloomguard.stores.base import MINUTE, Page
from tests.shop.models import Product
from tests.support.guarding import registered

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("fresh", "clock", "hasty"),
]


@pytest.fixture
def former(clock):
    """A guard that was built, asked and removed from the code."""
    with registered(Product, name="former") as guard:
        Rebuild(guard, sleep=clock.sleep).run()
    stores["default"].add_metrics(Page("former", MINUTE, 7), {0: 1})
    GuardTask.objects.create(name="former", work="rebuild", seen_at=timezone.now())
    return stores["default"].path / "former"


def run(*arguments):
    out = io.StringIO()
    call_command("remove_guard", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("each_database")
def test_nothing_is_left(former, monkeypatch):
    """No row, no filter, no metrics, no task; while there was a row, all processes were told to answer nothing."""
    fenced = []
    monkeypatch.setattr(states.table, "sleep", lambda seconds: fenced.append(states.table.row("former")))

    assert run("former", "--no-input") == "former: removed its state row and 1 filter\n"

    assert fenced[0].status == GuardState.Status.FENCED
    assert not former.exists()
    assert not GuardState.objects.filter(name="former").exists()
    assert not GuardTask.objects.filter(name="former").exists()
    with pytest.raises(CommandError, match=r"^nothing is left of a guard 'former', nor of another former one$"):
        run("former", "--no-input")


def test_it_prints_one_object(former):
    """What was deleted from which store."""
    [name] = stores["default"].names("former")

    found = json.loads(run("former", "--no-input", "--json"))
    assert found["name"] == "former"
    assert found["generations"]["default"] == [name]
    assert found["left"] == 0


def test_a_guard_of_the_project_is_refused(build):
    """Its row is of use."""
    build("product")

    with pytest.raises(CommandError, match=r"^the project has the guard 'product': remove its class first$"):
        run("product", "--no-input")
    assert states.table.current("product").active


@pytest.mark.parametrize(("answer", "is_removed"), [("yes", True), ("y", False), ("", False)])
def test_it_asks_first(former, monkeypatch, answer, is_removed):
    """As ``flush`` does: only ``yes`` continues."""
    monkeypatch.setattr("builtins.input", lambda: answer)
    run("former")

    assert GuardState.objects.filter(name="former").exists() is not is_removed
    assert former.exists() is not is_removed


def test_ctrl_c_at_the_question_removes_nothing(former, monkeypatch):
    """As any other answer than ``yes``, and the exit code says that it was stopped."""
    monkeypatch.setattr("builtins.input", mock.Mock(side_effect=KeyboardInterrupt))

    with pytest.raises(CommandError, match=r"^nothing was removed$") as stopped:
        run("former")

    assert stopped.value.returncode == 130
    assert GuardState.objects.filter(name="former").exists()


def test_without_a_terminal_it_removes_nothing(former, monkeypatch):
    """Under cron nobody can answer: an error with the option to add, not a traceback."""
    monkeypatch.setattr("sys.stdin", io.StringIO())

    with pytest.raises(CommandError, match=r"^nothing was removed, as nobody can be asked here: add --no-input$"):
        run("former")
    assert former.exists()


def test_filters_of_another_database_are_left(former):
    """Another site may answer from them, if both share a store in error."""
    theirs = former / "r0000000000000000.filter"
    theirs.touch(mode=0o600)

    assert run("former", "--no-input").endswith("and 1 filter; left 1 filter, built from another database\n")
    assert theirs.exists()
    assert (former / f"metrics-{MINUTE}-7").exists()


def test_a_store_that_fails_is_asked_before_the_row_is_gone(former, monkeypatch):
    """So that the command can be run again; and what a former run has left is removed without a row."""
    with monkeypatch.context() as patch:
        patch.setattr("os.listdir", _refused)
        with pytest.raises(CommandError, match=r"^former: the store 'default' cannot read"):
            run("former", "--no-input")
    assert GuardState.objects.filter(name="former").exists()

    GuardState.objects.filter(name="former").delete()
    assert run("former", "--no-input").endswith("1 filter\n")
    assert not former.exists()


def test_a_task_that_cannot_be_deleted_leaves_all_for_the_next_run(former):
    """The role may have no right to: then the row and the filters stay, too."""

    def refuse(execute, sql, params, many, context):
        if sql.startswith("DELETE") and GuardTask._meta.db_table in sql:
            raise ProgrammingError("permission denied for table bloomguard_guardtask")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse), pytest.raises(CommandError, match=r"^former: permission denied"):
        run("former", "--no-input")

    assert states.table.current("former").active
    assert run("former", "--no-input") == "former: removed its state row and 1 filter\n"


def test_tasks_are_where_the_router_has_them(former, settings):
    """Not where the state rows are."""
    settings.DATABASE_ROUTERS = [TasksElsewhere()]
    GuardTask.objects.create(name="former", work="rebuild", seen_at=timezone.now())

    run("former", "--no-input")

    assert not GuardTask.objects.exists()


class TasksElsewhere:
    def db_for_read(self, model, **hints):
        return "postgresql" if model is GuardTask else None

    db_for_write = db_for_read


def test_a_row_that_a_build_began_and_never_changed(fresh):
    """Until its first change a row counts as none; the check names it all the same."""
    GuardState.objects.create(name="former", version=0)

    assert run("former", "--no-input") == "former: removed its state row and 0 filters\n"
    assert not GuardState.objects.exists()


def test_filters_without_a_row(former):
    """The row was deleted by hand."""
    GuardState.objects.all().delete()

    assert run("former", "--no-input") == "former: removed 1 filter\n"


def test_of_several_stores_the_one_that_does_not_answer_is_named(former, monkeypatch):
    def unreachable(guard):
        raise StoreUnavailable("no connection to the server")

    monkeypatch.setattr(stores["default"].patient, "names", unreachable)

    with pytest.raises(CommandError, match=r"^former: the store 'default' cannot be used: no connection"):
        run("former", "--no-input")


def _refused(path):
    raise PermissionError(13, "Permission denied", path)


@pytest.mark.parametrize("name", ["", "../former", "Former"])
def test_a_name_that_no_guard_can_have(former, name):
    """No other folder is looked into."""
    with pytest.raises(CommandError, match=r"nothing is left of a guard .*, but of former$"):
        run(name, "--no-input")
    assert former.exists()
