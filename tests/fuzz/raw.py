"""SQL of a small grammar that no compiler has made, in as many disguises as people send it in."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Model

from .models import Article, Author, Diary, Entry, Page, Place, Price, Seat, Tag, Token
from .rows import KEYS, NUMBERS, made, some, value_of

#: Tables whose rows are one row each and whose values the statement can give.
TABLES = (Author, Tag, Token, Seat, Place, Article, Diary, Price, Page, Entry)
VIEW = "fuzz_tag_view"


def create_views() -> None:
    """A view whose rows can be written, on each database."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE VIEW {VIEW} AS SELECT id, slug, weight FROM fuzz_tag")
        if connection.vendor == "sqlite":
            cursor.execute(
                f"CREATE TRIGGER fuzz_tag_insert INSTEAD OF INSERT ON {VIEW} BEGIN "
                "INSERT INTO fuzz_tag (id, slug, weight) VALUES (NEW.id, NEW.slug, NEW.weight); END"
            )
            cursor.execute(
                f"CREATE TRIGGER fuzz_tag_update INSTEAD OF UPDATE ON {VIEW} BEGIN "
                "UPDATE fuzz_tag SET id = NEW.id, slug = NEW.slug WHERE id = OLD.id; END"
            )


def literal(value: Any) -> str:
    """A value as part of a statement's text."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, (str, UUID, datetime.date)):
        return f"'{value}'"
    raise TypeError(type(value).__name__)


class Raw:
    """Raw statements, on rows with numbers from ``first`` on."""

    def __init__(self, first: int, adding: Callable[[type[Model]], Any] = lambda model: nullcontext()) -> None:
        self.first = first
        self.adding = adding

    def raw(self, draw: Random) -> Any:
        """One statement, or several in one text."""
        sql = draw.choice(self.grammar)(draw)
        return self.send(self.disguised(sql, draw), draw)

    def send(self, sql: str, draw: Random) -> Any:
        with connection.cursor() as cursor:
            many = draw.random() < 0.15
            # After an error psycopg cannot always leave the pipeline in which it sends many: "cannot exit while busy".
            if many and connection.vendor == "sqlite":
                cursor.executemany(sql, [()])
            else:
                cursor.execute(sql)
            return cursor.rowcount if ";" not in sql else None

    def known(self, draw: Random) -> Any:
        """A statement whose keys are told."""
        model = draw.choice([Tag, Article, Diary, Entry])
        row = made(model, self.first + draw.randrange(NUMBERS), draw)
        if hasattr(row.pk, "resolve_expression"):
            row.pk = value_of(model._meta.pk, self.first)  # as `parts` has it
        columns, values = self.parts(row)
        with transaction.atomic(), self.adding(model) as add:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {model._meta.db_table} ({columns}) VALUES ({values})")
            if add is not None:
                add(row.pk)

    # -- parts

    def row(self, model: type[Model], draw: Random) -> tuple[str, str]:
        return self.parts(made(model, self.first + draw.randrange(NUMBERS), draw))

    def parts(self, row: Model) -> tuple[str, str]:
        """Its columns and their values."""
        names, values = [], []
        for field in row._meta.local_concrete_fields:
            value = row.__dict__.get(field.attname, ...)
            if value is ... or getattr(field, "generated", False):
                continue
            if hasattr(value, "resolve_expression"):
                value = None if field.has_db_default() else value_of(field, self.first)
            if value is None and not field.null:
                continue
            names.append(field.column)
            values.append(literal(field.get_db_prep_save(value, connection)))
        return ", ".join(names), ", ".join(values)

    def column(self, model: type[Model], draw: Random) -> tuple[str, str]:
        names = [name for name in KEYS[model] if model._meta.get_field(name) in model._meta.local_concrete_fields]
        field: Any = model._meta.get_field(draw.choice(names))
        if field.remote_field is not None:
            value = some(field.related_model, draw, field.target_field.attname)
        else:
            value = value_of(field, self.first + draw.randrange(NUMBERS))
        return field.column, literal(field.get_db_prep_save(value, connection))

    def where(self, model: type[Model], draw: Random) -> str:
        if model is Seat:
            return f"bench = {draw.randrange(4)}"
        field = model._meta.pk
        value = literal(field.get_db_prep_save(some(model, draw), connection))
        return draw.choice([f"{field.column} = {value}", f"{value} = {field.column}", f"{field.column} IN ({value})"])

    def disguised(self, sql: str, draw: Random) -> str:
        """The same statement in other clothes."""
        clothes: list[Callable[[str], str]] = [
            lambda sql: sql,
            lambda sql: f"  \n\t{sql}",
            lambda sql: f"/* SELECT 1; */ {sql}",
            lambda sql: f"-- it's a comment\n{sql}",
            lambda sql: sql.replace("INSERT INTO", "insert  into").replace("UPDATE ", "update\n"),
            lambda sql: sql.replace(" fuzz_", f" {self.schema}.fuzz_"),
            lambda sql: sql.replace(" fuzz_", f" {self.quoted(self.schema)} . fuzz_"),
            lambda sql: sql.replace(" SET ", " /* ' */ SET ").replace(" VALUES ", ' -- "\n VALUES '),
            lambda sql: f"{sql};",
            lambda sql: f"SELECT 1; {sql}",
            lambda sql: f"{sql}; SELECT ';'",
        ]
        return draw.choice(clothes)(sql)

    @property
    def schema(self) -> str:
        names = {"sqlite": "main", "postgresql": "public", "mysql": connection.settings_dict["NAME"]}
        return names[connection.vendor]

    @staticmethod
    def quoted(name: str) -> str:
        return connection.ops.quote_name(name)

    # -- the grammar

    def insert(self, draw: Random) -> str:
        model = draw.choice(TABLES)
        columns, values = self.row(model, draw)
        return f"INSERT INTO {model._meta.db_table} ({columns}) VALUES ({values})"

    def insert_selected(self, draw: Random) -> str:
        model = draw.choice(TABLES)
        columns, values = self.row(model, draw)
        return f"INSERT INTO {model._meta.db_table} ({columns}) SELECT {values}"

    def insert_quoted(self, draw: Random) -> str:
        model = draw.choice(TABLES)
        columns, values = self.row(model, draw)
        names = ", ".join(map(self.quoted, columns.split(", ")))
        into = "" if connection.vendor == "mysql" and draw.random() < 0.5 else " INTO"
        return f"INSERT{into} {self.quoted(model._meta.db_table)}({names}) VALUES({values})"

    def upsert(self, draw: Random) -> str:
        model = draw.choice([Tag, Place, Entry, Diary])
        columns, values = self.row(model, draw)
        column, value = self.column(model, draw)
        pk = model._meta.pk.column
        if connection.vendor == "mysql":
            sets = ", ".join(f"{name} = {one}" for name, one in zip(columns.split(", "), values.split(", ")))
            given = draw.choice([f"({columns}) VALUES ({values})", f"SET {sets}"])
            return f"INSERT INTO {model._meta.db_table} {given} ON DUPLICATE KEY UPDATE {column} = {value}"
        return (
            f"INSERT INTO {model._meta.db_table} ({columns}) VALUES ({values}) "
            f"ON CONFLICT ({pk}) DO UPDATE SET {column} = {value}"
        )

    def replace(self, draw: Random) -> str:
        model = draw.choice([Tag, Place, Entry, Diary])
        columns, values = self.row(model, draw)
        verb = draw.choice({
            "sqlite": ["REPLACE", "INSERT OR REPLACE"], "postgresql": ["INSERT"],
            "mysql": ["REPLACE", "REPLACE", "INSERT IGNORE"],
        }[connection.vendor])  # fmt: skip
        return f"{verb} INTO {model._meta.db_table} ({columns}) VALUES ({values})"

    def change(self, draw: Random) -> str:
        model = draw.choice(TABLES)
        column, value = self.column(model, draw)
        return f"UPDATE {model._meta.db_table} SET {column} = {value} WHERE {self.where(model, draw)}"

    def change_alias(self, draw: Random) -> str:
        model = draw.choice([Tag, Place, Article, Entry, Diary])
        column, value = self.column(model, draw)
        table, pk = model._meta.db_table, model._meta.pk.column
        only = "ONLY " if connection.vendor == "postgresql" and draw.random() < 0.5 else ""
        key = literal(model._meta.pk.get_db_prep_save(some(model, draw), connection))
        return f"UPDATE {only}{table} AS one SET {column} = {value} WHERE one.{pk} = {key}"

    def change_text(self, draw: Random) -> str:
        """A new key that is made of the old one."""
        sql = draw.choice([
            "UPDATE fuzz_tag SET slug = slug || 'r'",
            "UPDATE fuzz_place SET slug = slug || 'r', closed = FALSE",
            "UPDATE fuzz_place SET closed = NOT closed WHERE slug IS NOT NULL",
            "UPDATE fuzz_article SET deleted = FALSE WHERE deleted IS TRUE",
            "UPDATE fuzz_article SET deleted = (deleted IS DISTINCT FROM FALSE AND author_id IS NULL)",
            "UPDATE fuzz_price SET net = net + 3 WHERE net IS NOT NULL",
            "UPDATE fuzz_hall SET chairs = chairs + 1",
            "UPDATE fuzz_page SET kept = TRUE WHERE hidden",
            "UPDATE fuzz_seat SET free = TRUE",
        ])  # fmt: skip
        if connection.vendor == "mysql":
            sql = sql.replace("slug || 'r'", "CONCAT(slug, 'r')")
            sql = sql.replace("deleted IS DISTINCT FROM FALSE", "NOT deleted <=> FALSE")
        return sql

    def delete_where(self, draw: Random) -> str:
        model = draw.choice([Token, Diary, Page, Entry, Seat])
        returning = draw.choice(["", " RETURNING *"]) if connection.features.can_return_columns_from_insert else ""
        return f"DELETE FROM {model._meta.db_table} WHERE {self.where(model, draw)}{returning}"

    def common_table(self, draw: Random) -> str:
        model = draw.choice([Tag, Entry, Diary, Place])
        columns, values = self.row(model, draw)
        table, pk = model._meta.db_table, model._meta.pk.column
        if connection.vendor == "postgresql" and draw.random() < 0.5:
            return draw.choice([
                f"WITH made AS (INSERT INTO {table} ({columns}) VALUES ({values}) RETURNING *) SELECT * FROM made",
                f"WITH gone AS (DELETE FROM {table} WHERE {self.where(model, draw)} RETURNING *) "
                f"INSERT INTO {table} ({columns}) SELECT {values}",
            ])  # fmt: skip
        if connection.vendor == "mysql":
            return (
                f"INSERT INTO {table} ({columns}) WITH new ({columns}) AS (SELECT {values}) SELECT {columns} FROM new"
            )
        return draw.choice([
            f"WITH new ({columns}) AS (SELECT {values}) INSERT INTO {table} ({columns}) SELECT {columns} FROM new",
            f"WITH old AS (SELECT {pk} AS one FROM {table}) "
            "UPDATE {} SET {} = {} WHERE {} IN (SELECT one FROM old LIMIT 1)".format(
                table, *self.column(model, draw), pk
            ),
        ])  # fmt: skip

    def view(self, draw: Random) -> str:
        number = self.first + draw.randrange(NUMBERS)
        key = value_of(Tag._meta.pk, number)
        return draw.choice([
            f"INSERT INTO {VIEW} (id, slug, weight) VALUES ({key}, 'v{number}', 0)",
            f"UPDATE {VIEW} SET slug = 'w{number}' WHERE id = {some(Tag, draw) or 0}",
        ])  # fmt: skip

    def block(self, draw: Random) -> str:
        """What only PostgreSQL has, or MySQL and MariaDB, or one of these."""
        sql = self.insert(draw)
        if connection.vendor == "mysql":
            change, text = self.change(draw), sql.replace("'", "''")
            joined = f"fuzz_tag SET fuzz_tag.slug = 'j{draw.randrange(9)}' WHERE fuzz_tag.id = "
            return draw.choice([
                f"/*! {sql} */", f"UPDATE fuzz_author, {joined}3",
                *([
                    f"BEGIN NOT ATOMIC {sql}; {change}; END", f"ANALYZE {sql}", f"EXECUTE IMMEDIATE '{text}'",
                    f"SET STATEMENT max_statement_time = 100 FOR {change}",
                ] if connection.mysql_is_mariadb else [
                    f"WITH old AS (SELECT MIN(id) AS one FROM fuzz_tag) UPDATE old, {joined}one",
                    f"PREPARE one FROM '{text}'; EXECUTE one", f"/*!80000 {sql} */",
                    f"INSERT INTO fuzz_tag (id, slug, weight) VALUES ROW({900 + draw.randrange(9)}, 'm', 0)",
                    f"UPDATE /*+ SET_VAR(sort_buffer_size = 65536) */ {change.removeprefix('UPDATE ')}",
                ]),
            ])  # fmt: skip
        if connection.vendor != "postgresql":
            return sql
        return draw.choice([
            f"DO $$ BEGIN {sql}; END $$",
            f"PREPARE one AS {sql}; EXECUTE one; DEALLOCATE one",
            f"EXPLAIN (ANALYZE, BUFFERS FALSE) {sql}",  # whose lines depend on what the server has in memory
            "MERGE INTO fuzz_tag AS t USING (SELECT 1) AS s ON FALSE WHEN NOT MATCHED THEN "
            f"INSERT (id, slug, weight) VALUES ({900 + draw.randrange(9)}, 'm{draw.randrange(99)}', 0)",
        ])  # fmt: skip

    def two(self, draw: Random) -> str:
        return f"{self.delete_where(draw)}; {draw.choice([self.insert, self.change])(draw)}"

    @property
    def grammar(self) -> list[Callable[[Random], str]]:
        return [
            self.insert, self.insert_selected, self.insert_quoted, self.upsert, self.replace, self.change,
            self.change_alias, self.change_text, self.delete_where, self.common_table, self.view, self.block, self.two,
        ]  # fmt: skip
