"""Every way to write rows by the ORM, on models and in transactions of every kind; and what the driver sends."""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3
from django.db.models import F, Model, Value
from django.db.models.functions import Concat
from django.db.models.sql import compiler as compilers

from bloomguard.writes import raw
from tests.shop.models import (
    Article,
    Bargain,
    Bundle,
    Diary,
    Exhibit,
    Order,
    Place,
    Price,
    Product,
    Review,
    Tag,
    Ticket,
)
from tests.support import database

New = Callable[[int], dict[str, Any]]

#: What a new row of each model is made of, and what one of its columns may be changed to.
MODELS: dict[type[Model], tuple[New, Callable[[int], dict[str, Any]]]] = {
    Product: (lambda n: {"name": f"product-{n}"}, lambda n: {"name": f"changed-{n}"}),
    Bargain: (lambda n: {"name": f"bargain-{n}"}, lambda n: {"name": f"cheaper-{n}"}),
    Bundle: (lambda n: {"name": f"bundle-{n}", "size": n}, lambda n: {"size": n + 1}),
    Order: (lambda n: {"id": UUID(int=n)}, lambda n: {}),
    Article: (lambda n: {"slug": f"article-{n}"}, lambda n: {"slug": f"renamed-{n}"}),
    Place: (lambda n: {"country": "de", "slug": f"place-{n}"}, lambda n: {"country": "fr"}),
    Price: (lambda n: {"amount": Decimal(n)}, lambda n: {"amount": Decimal(n) + Decimal("0.5")}),
    Diary: (
        lambda n: {"day": datetime.date(2000, 1, 1) + datetime.timedelta(n)},
        lambda n: {"day": datetime.date(1900, 1, 1) + datetime.timedelta(n)},
    ),
    Ticket: (lambda n: {"event": n, "number": 1}, lambda n: {"note": f"note-{n}"}),
    Exhibit: (lambda n: {"label": f"label-{n}", "shelf": f"shelf-{n}"}, lambda n: {"shelf": f"other-{n}"}),
    Tag: (lambda n: {"shout": f"tag-{n}", "title": f"Title-{n}"}, lambda n: {"title": f"Other-{n}"}),
    Review: (lambda n: {"product": Product.objects.create(name=f"reviewed-{n}")}, lambda n: {"article": None}),
}

Write = Callable[[type[Any], New, New, int], Any]


def create(model, new, change, n):
    return model.objects.create(**new(n))


def save(model, new, change, n):
    row = model(**new(n))
    row.save()
    for name, value in change(n).items():
        setattr(row, name, value)
    row.save()


def save_fields(model, new, change, n):
    row = model.objects.create(**new(n))
    for name, value in change(n).items():
        setattr(row, name, value)
    row.save(update_fields=list(change(n)))


def save_expression(model, new, change, n):
    row = model.objects.create(**new(n))
    name = next(iter(change(n)))
    setattr(row, name, F(name))
    row.save()


def save_forced(model, new, change, n):
    row = model(**new(n))
    row.save(force_insert=True)
    row.save(force_update=True)


def update(model, new, change, n):
    row = model.objects.create(**new(n))
    return model.objects.filter(pk=row.pk).update(**change(n))


def update_by_expression(model, new, change, n):
    row = model.objects.create(**new(n))
    name = next(iter(change(n)))
    return model.objects.filter(pk=row.pk).update(**{name: Concat(F(name), Value("-x"))})


def update_none(model, new, change, n):
    return model.objects.filter(pk__in=[]).update(**change(n))


def bulk_create_one(model, new, change, n):
    model.objects.bulk_create([model(**new(n))])


def bulk_create(model, new, change, n):
    model.objects.bulk_create([model(**new(n)), model(**new(n + 100)), model(**new(n + 200))])


def bulk_create_in_batches(model, new, change, n):
    model.objects.bulk_create([model(**new(n + each)) for each in (0, 100, 200)], batch_size=2)


def bulk_create_ignoring(model, new, change, n):
    model.objects.create(**new(n))
    model.objects.bulk_create([model(**new(n)), model(**new(n + 100))], ignore_conflicts=True)
    model.objects.bulk_create([model(**new(n))], ignore_conflicts=True)


def bulk_create_updating(model, new, change, n):
    model.objects.create(**new(n))
    unique = [name for name in new(n) if model._meta.get_field(name).unique] or list(new(n))
    model.objects.bulk_create(
        [model(**new(n)), model(**new(n + 100))],
        update_conflicts=True,
        unique_fields=database.conflicting(*unique),
        update_fields=list(change(n)),
    )


def bulk_update(model, new, change, n):
    rows = [model.objects.create(**new(n)), model.objects.create(**new(n + 100))]
    for place, row in enumerate(rows):
        for name, value in change(n + 100 * place).items():
            setattr(row, name, value)
    return model.objects.bulk_update(rows, list(change(n)))


def get_or_create(model, new, change, n):
    return [model.objects.get_or_create(**new(n))[1] for _ in range(2)]


def update_or_create(model, new, change, n):
    return [model.objects.update_or_create(**new(n), defaults=change(n))[1] for _ in range(2)]


def delete(model, new, change, n):
    return model.objects.create(**new(n)).delete()


def delete_many(model, new, change, n):
    model.objects.create(**new(n))
    return model.objects.filter(**new(n)).delete()


def raw_delete(model, new, change, n):
    row = model.objects.create(**new(n))
    return model.objects.filter(pk=row.pk)._raw_delete(database.current)


def conflict(model, new, change, n):
    row = model.objects.create(**new(n))
    model(pk=row.pk, **new(n)).save(force_insert=True)


def through(model, new, change, n):
    """A many-to-many relation, whatever the model."""
    group = Group.objects.create(name=f"group-{model.__name__}-{n}")
    kind = ContentType.objects.create(pk=100_000 + n, app_label="x", model=f"{model.__name__}-{n}")
    some = [Permission.objects.create(codename=f"{place}", name="x", content_type=kind) for place in range(3)]
    group.permissions.add(*some)
    group.permissions.remove(some[0])
    group.permissions.set(some[:2])
    group.permissions.clear()


WRITES: list[Write] = [
    create, save, save_fields, save_expression, save_forced, update, update_by_expression, update_none,
    bulk_create_one, bulk_create, bulk_create_in_batches, bulk_create_ignoring, bulk_create_updating, bulk_update,
    get_or_create, update_or_create, delete, delete_many, raw_delete, conflict, through,
]  # fmt: skip


@contextmanager
def autocommit() -> Iterator[None]:
    yield


def atomic() -> Any:
    return transaction.atomic(using=database.current)


@contextmanager
def nested() -> Iterator[None]:
    with atomic(), atomic():
        yield


def durable() -> Any:
    return transaction.atomic(using=database.current, durable=True)


@contextmanager
def by_hand() -> Iterator[None]:
    connection = connections[database.current]
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            if is_psycopg3 or database.current != "postgresql":
                connection.rollback()
            else:
                cursor.execute("ROLLBACK")  # psycopg 2 rolls back nothing that it has not begun itself
            raise


@contextmanager
def without_autocommit() -> Iterator[None]:
    connection = connections[database.current]
    connection.set_autocommit(False)
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.set_autocommit(True)


@contextmanager
def atomic_without_autocommit() -> Iterator[None]:
    """The block begins and ends no transaction."""
    with without_autocommit(), atomic():
        yield


TRANSACTIONS: list[Callable[[], Any]] = [
    autocommit, atomic, nested, durable, by_hand, without_autocommit, atomic_without_autocommit,
]  # fmt: skip


def run(block: Callable[[], Any]) -> list[str]:
    """Every write in such a block: what it gave, or raised.

    Of every model under autocommit and in a plain transaction; in the other blocks every second model, in turn.
    """
    outcomes = []
    for number, (model, (new, change)) in enumerate(MODELS.items()):
        if block not in (autocommit, atomic) and (number + TRANSACTIONS.index(block)) % 2:
            continue
        for place, write in enumerate(WRITES):
            n = 1 + 1_000 * number + place + 300
            try:
                with block():
                    given = write(model, new, change, n)
            except Exception as error:
                given = type(error).__name__
            outcomes.append(f"{model.__name__} {write.__name__}: {given}")
    return outcomes


@contextmanager
def sent() -> Iterator[list[str]]:
    """What the driver sends to the database, BEGIN and COMMIT included; filled when the block ends."""
    connection: Any = connections[database.current]
    connection.ensure_connection()
    found: list[str] = []
    if connection.vendor == "sqlite":
        connection.connection.set_trace_callback(found.append)
        try:
            yield found
        finally:
            connection.connection.set_trace_callback(None)
        # Read past Django's cursor, in a transaction, where the file is locked against every other connection.
        found[:] = [each for each in found if "bloomguard_guardstate" not in each]
        return
    if connection.vendor == "mysql":
        with connection.connection.cursor() as cursor:
            cursor.execute("SET GLOBAL log_output = 'TABLE'")
            cursor.execute("TRUNCATE mysql.general_log")
            cursor.execute("SET GLOBAL general_log = 1")
            try:
                yield found
            finally:
                cursor.execute("SET GLOBAL general_log = 0")
            cursor.execute(
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log "
                "WHERE thread_id = CONNECTION_ID() AND command_type = 'Query' ORDER BY event_time"
            )
            asked = ("general_log", "@@in_transaction", "@@transaction_isolation", "bloomguard_open")
            found += [text for (text,) in cursor.fetchall() if not any(word in text for word in asked)]
        return
    if not is_psycopg3:
        pytest.skip("psycopg 2 does not trace what it sends")
    from psycopg import pq

    with tempfile.TemporaryFile("w+") as file:
        connection.connection.pgconn.trace(file.fileno())
        connection.connection.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield found
        finally:
            connection.connection.pgconn.untrace()
        file.seek(0)
        found += re.findall(r"^F\t\d+\t(?:Query|Parse|Bind)\t(.*)$", file.read(), re.MULTILINE)


@contextmanager
def uninstalled() -> Iterator[None]:
    """Django without the hooks."""
    connection: Any = connections[database.current]
    hooked = [
        (owner, name)
        for owner in (compilers.SQLInsertCompiler, compilers.SQLUpdateCompiler, compilers.SQLDeleteCompiler)
        for name in ("execute_sql", "execute_returning_sql")
        if f"_bloomguard_{name}" in vars(owner)
    ]
    patches = [patch.object(owner, name, getattr(owner, f"_bloomguard_{name}")) for owner, name in hooked]
    assert len(patches) >= 3
    for each in patches:
        each.start()
    wrappers = list(connection.execute_wrappers)
    connection.execute_wrappers[:] = [each for each in wrappers if each is not raw.watch]
    try:
        yield
    finally:
        connection.execute_wrappers[:] = wrappers
        for each in patches:
            each.stop()


def empty() -> None:
    """No rows, and the numbers of the next ones begin anew."""
    connection: Any = connections[database.current]
    tables = {model._meta.db_table for model in (*MODELS, Group, Permission, Group.permissions.through)}
    tables |= {parent._meta.db_table for model in MODELS for parent in model._meta.all_parents}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(sorted(tables))} RESTART IDENTITY CASCADE")
        elif connection.vendor == "mysql":
            cursor.execute("SET FOREIGN_KEY_CHECKS = 0")
            for table in sorted(tables):
                cursor.execute(f"TRUNCATE {table}")
            cursor.execute("SET FOREIGN_KEY_CHECKS = 1")
        else:
            cursor.execute("PRAGMA foreign_keys = OFF")
            for table in sorted(tables):
                cursor.execute(f"DELETE FROM {table}")
            with suppress(Exception):
                cursor.execute("DELETE FROM sqlite_sequence")
            cursor.execute("PRAGMA foreign_keys = ON")
    ContentType.objects.filter(app_label="x").delete()
    connection.savepoint_state = 0
