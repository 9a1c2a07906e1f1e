"""One thread that writes: its transactions, of every make, and what came of each step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from random import Random
from typing import Any

from django.db import DatabaseError, connection, models, transaction

from .models import Article, Author, Place, Price, Tag
from .raw import Raw
from .writes import GivenUp, Writes, name_of

Outcome = dict[str, Any]


class Hand(threading.Thread):
    """Runs what it is given, one call at a time: a thread with connections of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            try:
                self._results.put((function(*arguments), None))
            except BaseException as error:
                self._results.put((None, error))

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._calls.put((function, arguments))

    def wait(self) -> Any:
        result, error = self._results.get()
        if error is not None:
            raise error
        return result

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.wait()

    def end(self) -> None:
        self._calls.put(None)
        self.join()


class Actor(Writes, Raw):
    """Performs steps. ``explain`` notes the statements, for people."""

    def __init__(self, first: int, adding: Callable[..., Any] | None = None) -> None:
        Writes.__init__(self, first)
        if adding is not None:
            Raw.__init__(self, first, adding)
        else:
            Raw.__init__(self, first)
        self._atomics: list[Any] = []
        self._savepoints: list[str] = []
        self.statements: list[str] | None = None

    def perform(self, name: str, seed: int) -> Outcome:
        """What the step gave: its result or the name of its error, and whether a transaction is open after it."""
        try:
            if self.statements is not None:
                with connection.execute_wrapper(self._note):
                    result = getattr(self, name)(Random(seed))
            else:
                result = getattr(self, name)(Random(seed))
        except (TypeError, AttributeError, LookupError, AssertionError):
            raise  # a step that is made wrongly
        except Exception as error:
            result = name_of(error)
            if self.statements is not None:
                self.statements.append(f"!! {type(error).__name__}: {str(error)[:300]}")
        if connection.in_atomic_block and not self._atomics:
            self.start_over()  # an `atomic` whose savepoint was refused has left Django in a block that nobody leaves
        return {"result": repr(result), "open": self.is_open}

    def _note(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        assert self.statements is not None
        self.statements.append(f"{sql!s:.400} {params!s:.200}")
        return execute(sql, params, many, context)

    @property
    def is_open(self) -> bool:
        """Whether what is written now is not committed at once."""
        return connection.connection is not None and (connection.in_atomic_block or self.has_begun)

    @property
    def has_begun(self) -> bool:
        """Whether the database has a transaction open; without autocommit, MariaDB opens none for a savepoint."""
        raw = connection.connection
        if raw is None:
            return False
        if connection.vendor == "mysql" and connection.mysql_is_mariadb:
            raw.query("SELECT @@in_transaction")
            return bool(raw.store_result().fetch_row()[0][0])
        if connection.vendor == "mysql":
            try:
                raw.query("SET TRANSACTION READ WRITE")
            except connection.Database.OperationalError:  # it is not permitted in a transaction
                return True
            return False
        return bool(raw.in_transaction if connection.vendor == "sqlite" else raw.info.transaction_status)

    @property
    def is_broken(self) -> bool:
        """Whether PostgreSQL, or Django, refuses every statement until a ROLLBACK."""
        raw = connection.connection
        aborted = connection.vendor == "postgresql" and raw is not None and raw.info.transaction_status == 3
        return aborted or connection.needs_rollback or connection.closed_in_transaction

    # -- transactions

    def enter(self, draw: Random) -> None:
        if len(self._atomics) < 3:
            atomic = transaction.atomic(savepoint=draw.random() < 0.8)
            atomic.__enter__()
            self._atomics.append(atomic)

    def leave(self, draw: Random) -> None:
        if self._atomics:
            atomic = self._atomics.pop()
            if draw.random() < 0.3:
                error = GivenUp()
                atomic.__exit__(type(error), error, None)
            else:
                atomic.__exit__(None, None, None)

    def savepoint(self, draw: Random) -> None:
        """Savepoints of Django's functions."""
        if not self._savepoints or draw.random() < 0.5:
            name = transaction.savepoint()
            self._savepoints += [name] if name else []
        elif draw.random() < 0.6:
            transaction.savepoint_rollback(draw.choice(self._savepoints))
        else:
            transaction.savepoint_commit(self._savepoints.pop())

    def by_hand(self, draw: Random) -> None:
        """Statements of transactions, as a program sends them that knows nothing of Django; few names."""
        name = draw.choice(["s", "s", "S", '"s"', "t"])
        sql = draw.choice([
            "BEGIN", "BEGIN", "begin transaction", "COMMIT", "COMMIT", "END", "ROLLBACK", "BEGIN IMMEDIATE",
            f"SAVEPOINT {name}", f"SAVEPOINT {name}", f"savepoint {name}", f"ROLLBACK TO {name}",
            f"rollback to savepoint {name}", f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE {name}",
            f"RELEASE SAVEPOINT {name}", f"/* x */ SAVEPOINT {name}", f"  ROLLBACK TO SAVEPOINT {name}",
        ])  # fmt: skip
        if sql.split()[0].upper() in ("BEGIN", "COMMIT", "END", "ROLLBACK") and self._atomics and " " not in sql:
            return  # Django would not know where it is
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def autocommit(self, draw: Random) -> None:
        if connection.get_autocommit():
            transaction.set_autocommit(False)
        else:
            draw.choice([transaction.commit, transaction.commit, transaction.rollback])()
            if draw.random() < 0.5:
                transaction.set_autocommit(True)

    def finish(self, draw: Random) -> None:
        """End whatever is open: committed, unless it is refused."""
        give_up = draw.random() < 0.2
        while self._atomics:
            atomic = self._atomics.pop()
            error = GivenUp() if give_up else None
            with suppress(Exception):
                atomic.__exit__(type(error) if error else None, error, None)
        self._savepoints.clear()
        if connection.connection is not None and self.is_open:
            with suppress(Exception), connection.cursor() as cursor:
                cursor.execute("ROLLBACK" if give_up else "COMMIT")
            if self.is_open:  # SQLite refuses a COMMIT that breaks a foreign key, and goes on with the transaction
                with suppress(Exception), connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
        if not connection.get_autocommit():
            with suppress(Exception):
                transaction.rollback()
            transaction.set_autocommit(True)

    def start_over(self) -> None:
        """As a thread that has just begun."""
        self._atomics.clear()
        self._savepoints.clear()
        connection.close()
        connection.in_atomic_block, connection.needs_rollback = False, False
        connection.savepoint_ids, connection.atomic_blocks = [], []
        connection.run_on_commit, connection.savepoint_state = [], 0
        connection.closed_in_transaction = False
        with suppress(DatabaseError):  # mysqlclient's, if it was closed above
            connection.close()
        connection.connection = None

    # -- columns

    def alter(self, draw: Random) -> None:
        """A migration's work, there and, where the models would no longer fit, back."""
        with connection.schema_editor() as editor:
            kind = draw.randrange(5)  # not the table under the view: SQLite cannot rename that
            if kind == 0:
                field = models.IntegerField(null=True)
                field.set_attributes_from_name("extra")
                model = draw.choice([Place, Author, Article])
                field.model = model
                editor.add_field(model, field)
                editor.remove_field(model, field)
            elif kind == 1:
                self._altered(editor, Place, "slug", lambda: models.SlugField(max_length=80, unique=True))
            elif kind == 2:
                self._altered(editor, Place, "slug", lambda: models.SlugField(unique=True), "handle")
            elif kind == 3:
                self._altered(editor, Price, "code", lambda: models.CharField(max_length=50, unique=True))
            else:
                editor.alter_db_table(Author, "fuzz_author", "fuzz_writer")
                editor.alter_db_table(Author, "fuzz_writer", "fuzz_author")

    @staticmethod
    def _altered(editor: Any, model: Any, name: str, make: Callable[[], Any], renamed: str = "") -> None:
        old, new = model._meta.get_field(name), make()
        new.set_attributes_from_name(renamed or name)
        new.model = model
        editor.alter_field(model, old, new)
        editor.alter_field(model, new, old)

    def read(self, draw: Random) -> Any:
        """What takes a snapshot."""
        return Tag.objects.count()
