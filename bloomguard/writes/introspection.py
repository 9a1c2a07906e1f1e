"""Reads from a database what it does by itself when a table is written.

That is: views, partitions, inheritance, triggers, rules, defaults, functions, and foreign keys with an action. Each
process reads the catalogue of a database once, by the connection that writes. For SQLite, also which tables a migration
makes anew with the rows of old ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.db import Error

from ..state.connection import READ_PATIENCE, fetch_uncounted
from ..state.transactions import is_under_way
from .catalogue import EMPTIED, ROW, WRITES, Catalogue
from .observer import TransactionObserver
from .sql.reader import read, read_body
from .sql.statement import ANYTHING, Effect
from .sql.tokens import ANEW, bare, routine
from .sql.words import EXTENSIONS


def load(connection: Any) -> Catalogue:
    """Load the catalogue by ``connection``. Raises Django's exceptions."""
    catalogue = Catalogue()
    reader = _READERS.get(connection.vendor)
    if reader is not None:  # no filter is built from any other database
        with undisturbed(connection) as fetch:
            reader(catalogue, fetch)
    return catalogue


#: Whether a file of SQLite has a trigger, or a foreign key that changes rows.
_SQLITE_ACTIONS = """
    SELECT 1 FROM sqlite_master WHERE type = 'trigger' UNION ALL
    SELECT 1 FROM sqlite_master AS t, pragma_foreign_key_list(t.name) AS k
    WHERE t.type = 'table' AND (k.on_update NOT IN ('NO ACTION', 'RESTRICT') OR k.on_delete LIKE 'SET %') LIMIT 1"""


def acts_beyond_catalogue(connection: Any) -> bool:
    """Whether the connection has actions of SQLite that no catalogue has; also if it cannot be asked.

    They are the triggers that no other connection has, and the triggers and foreign keys of files attached to this one.
    """
    if connection.vendor != "sqlite" or connection.connection is None:
        return False
    try:
        if fetch_uncounted(connection, "SELECT 1 FROM temp.sqlite_master WHERE type = 'trigger'"):
            return True
        files = fetch_uncounted(connection, "PRAGMA database_list")
        # One in memory is empty when it is attached, and gets triggers by this connection alone.
        others = [path for _, name, path in files if path and name not in ("main", "temp")]
        return any(_has_actions(path, connection) for path in others)
    except Error:
        return True


def _has_actions(path: str, connection: Any) -> bool:
    # By a connection of our own: the transaction must not take a snapshot of the file before it writes to it.
    connect, uri = connection.Database.connect, f"{Path(path).as_uri()}?mode=rw"
    with connection.wrap_database_errors, closing(connect(uri, uri=True, timeout=READ_PATIENCE)) as own:
        return own.execute(_SQLITE_ACTIONS).fetchone() is not None


Fetch = Callable[..., Iterable[Any]]


@contextmanager
def undisturbed(connection: Any) -> Iterator[Fetch]:
    """Queries that leave the project's transaction as it was."""
    fetch = partial(fetch_uncounted, connection)
    if connection.vendor != "postgresql":
        yield fetch
    elif is_under_way(connection):
        fetch("SAVEPOINT bloomguard_catalogue")
        try:
            yield fetch
        except BaseException:  # the writer's transaction goes on
            fetch("ROLLBACK TO SAVEPOINT bloomguard_catalogue")
            raise
        finally:
            fetch("RELEASE SAVEPOINT bloomguard_catalogue")
    else:
        try:
            yield fetch
        finally:
            if is_under_way(connection):
                connection.connection.rollback()  # so the project's transaction begins with its own first statement


def add_action(
    catalogue: Catalogue, parent: str, child: str, columns: Iterable[str], referenced: Iterable[str], on_delete: str,
    on_update: str = "",
) -> None:  # fmt: skip
    """Add a foreign key from ``columns`` of ``child`` to ``referenced`` of ``parent``, with its actions."""
    own, because = frozenset(column.lower() for column in columns), f"a foreign key of {child!r}"
    changed = Effect("update", bare(child), own)
    # Of several columns, PostgreSQL may set only some to NULL.
    emptied = changed._replace(columns=own | {EMPTIED}) if len(own) == 1 else changed
    gone = {"CASCADE": Effect("delete", bare(child)), "SET NULL": emptied, "SET DEFAULT": changed}.get(on_delete)
    moved = {"CASCADE": changed, "SET NULL": emptied, "SET DEFAULT": changed}.get(on_update)
    if gone is not None:
        catalogue.add(parent, frozenset({"delete"}), gone, because=because, is_active=True)
    if moved is not None:
        keys = frozenset(column.lower() for column in referenced) or None
        catalogue.add(parent, frozenset({"update"}), moved, columns=keys, because=because, is_active=True)


# -- SQLite


def _read_sqlite(catalogue: Catalogue, fetch: Fetch) -> None:
    objects = [
        (kind, name, table, sql or "")
        for kind, name, table, sql in fetch("SELECT type, name, tbl_name, sql FROM main.sqlite_master")
    ]
    relations = [name for kind, name, _, _ in objects if kind in ("table", "view")]
    for kind, name, table, sql in objects:
        if kind == "trigger":
            catalogue.add_trigger(table, WRITES, read_body(sql, "sqlite"), f"the trigger {name!r}")
        elif kind == "view":
            for other in relations:
                if other != name and re.search(rf"(?<!\w){re.escape(other)}(?!\w)", sql, re.IGNORECASE):
                    catalogue.add_shown(other, name, is_view=True)
        elif kind == "table":
            upper = sql.upper()
            if "CONFLICT" in upper and "REPLACE" in upper:
                catalogue.add(name, ROW, Effect("delete", bare(name)))
            _add_sqlite_keys(catalogue, name, fetch)


def _add_sqlite_keys(catalogue: Catalogue, table: str, fetch: Fetch) -> None:
    keys: dict[int, list[Any]] = {}
    quoted = table.replace("'", "''")
    for row in fetch(f"PRAGMA main.foreign_key_list('{quoted}')"):
        keys.setdefault(row[0], []).append(row)
    for rows in keys.values():
        _, _, parent, _, _, on_update, on_delete, _ = rows[0]
        referenced = [row[4] for row in rows if row[4]]
        add_action(catalogue, parent, table, [row[3] for row in rows], referenced, on_delete, on_update)


# -- SQLite's schema editor, which makes a table anew: it copies the rows into a new one, and puts that in its place
#
# If all of that is one transaction, each row came by a statement that was followed. A table that was there before may
# have rows that no filter has. And the new column may convert values, as numbers do with '007', or compare others.


def note_remade(effects: Iterable[Effect], connection: Any) -> None:
    """Note the tables that a statement has just made, for as long as its transaction is open."""
    made = {effect.name for effect in effects if effect.verb == "made"}
    if made and is_under_way(connection):
        TransactionObserver.ensure(connection).remade |= made


def with_remade(effects: Iterable[Effect], connection: Any) -> list[Effect]:
    """Return ``effects`` with what copies and swaps mean for keys.

    Each copy has those columns alone that store and compare values as before. A table that was made in this
    transaction takes the place of another one without an effect, and any other table has new rows.
    """
    found = []
    for effect in effects:
        if effect.verb == "copy":
            before, after = (_types(name, connection) for name in (effect.name, ANEW + effect.name))
            same = {name for name in effect.columns or () if name in before and before[name] == after.get(name)}
            found.append(effect._replace(columns=frozenset(same)))
        elif effect.verb != "swap":
            found.append(effect)
        elif (observer := TransactionObserver.of(connection)) is None or effect.name not in observer.remade:
            found.append(effect._replace(verb="insert"))
    return found


def _types(table: str, connection: Any) -> dict[str, str]:
    """Return the types of a table's columns, without lengths, which SQLite ignores; none if other words count too."""
    try:
        rows = fetch_uncounted(connection, "SELECT sql FROM main.sqlite_master WHERE lower(name) = ?", [table])
        if len(rows) != 1 or re.search(r"\b(?:COLLATE|STRICT)\b", rows[0][0], re.IGNORECASE):
            return {}
        columns = fetch_uncounted(connection, "SELECT name, type FROM pragma_table_info(?, 'main')", [table])
    except Error:
        return {}
    return {name.lower(): re.sub(r"\d", "", kind).lower() for name, kind in columns}


# -- PostgreSQL

_OWN = "NOT IN ('pg_catalog', 'information_schema')"
_DEPENDING = f"""
    SELECT DISTINCT b.relname, v.relname
    FROM pg_rewrite r JOIN pg_class v ON v.oid = r.ev_class JOIN pg_namespace n ON n.oid = v.relnamespace
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class b ON b.oid = d.refobjid AND b.oid <> v.oid AND b.relkind NOT IN ('S', 'i', 'c')
    WHERE n.nspname {_OWN} AND r.ev_type = '1' AND v.relkind = 'v'"""  # noqa: S608
#: ``pg_get_ruledef`` locks the rule's tables as a read does. While another transaction changes one, as a migration may
#: for hours, no text is asked for: a writer of other tables would wait for it.
_RULES = f"""
    SELECT c.relname, r.ev_type::text, CASE WHEN NOT EXISTS (
        SELECT FROM pg_locks l WHERE l.mode = 'AccessExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND (l.relation = c.oid OR l.relation IN (
            SELECT d.refobjid FROM pg_depend d WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            AND d.refclassid = 'pg_class'::regclass))) THEN pg_get_ruledef(r.oid) END
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE r.ev_type <> '1' AND r.ev_enabled <> 'D' AND n.nspname {_OWN}"""  # noqa: S608
_INHERITING = """
    SELECT c.relname, p.relname, p.relkind::text
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
    WHERE c.relkind NOT IN ('i', 'I')"""
#: Those that run BEFORE each row (the bits 1 and 2) also with functions of PostgreSQL, as for a tsvector.
_TRIGGERS = f"""
    SELECT DISTINCT c.relname, t.tgtype, p.proname, t.tgname
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
    JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE t.tgenabled <> 'D' AND (n.nspname {_OWN} OR t.tgtype & 3 = 3)"""  # noqa: S608
_FOREIGN_KEYS = """
    SELECT DISTINCT p.relname, c.relname, k.confdeltype::text, k.confupdtype::text,
        (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = k.conrelid AND attnum = ANY (k.conkey)),
        (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = k.confrelid AND attnum = ANY (k.confkey))
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class p ON p.oid = k.confrelid
    WHERE k.contype = 'f'"""
#: The last column says whether ``row.function`` calls it.
_FUNCTIONS = f"""
    SELECT p.proname, l.lanname, p.provolatile::text, p.prosrc,
        CASE WHEN p.prosrc = '' THEN pg_get_functiondef(p.oid) END,
        p.pronargs - p.pronargdefaults <= 1 AND EXISTS (
            SELECT FROM pg_type t LEFT JOIN pg_type b ON b.oid = t.typbasetype
            WHERE t.oid = p.proargtypes[0] AND (t.typtype IN ('c', 'p') OR b.typtype IN ('c', 'd')))
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
    WHERE p.prokind IN ('f', 'p', 'w') AND n.nspname {_OWN} AND NOT EXISTS (
        SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_extension'::regclass
        AND d.deptype = 'e' AND e.extname IN ({", ".join(f"'{name}'" for name in sorted(EXTENSIONS))}))"""  # noqa: S608
#: Tables whose defaults, constraints and conditions of triggers call user-defined functions.
_CALLING = f"""
    SELECT c.relname, p.proname, a.oid IS NOT NULL FROM pg_depend d
    JOIN pg_proc p ON p.oid = d.refobjid JOIN pg_namespace n ON n.oid = p.pronamespace
    LEFT JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
    LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
    LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND d.objid = t.oid AND t.tgfoid <> p.oid
    JOIN pg_class c ON c.oid IN (a.adrelid, k.conrelid, t.tgrelid)
    WHERE d.refclassid = 'pg_proc'::regclass AND n.nspname {_OWN}"""  # noqa: S608
_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
_EVENTS = {"2": "update", "3": "insert", "4": "delete"}


def _read_postgresql(catalogue: Catalogue, fetch: Fetch) -> None:
    for name, language, volatile, source, definition, takes_row in fetch(_FUNCTIONS):
        known = catalogue.functions.get(name.lower(), frozenset())
        if takes_row:
            catalogue.of_rows.add(name.lower())
        catalogue.functions[name.lower()] = known | _does(language, volatile, source or _after_head(definition))
    for base, view in fetch(_DEPENDING):
        catalogue.add_view(base, view)
    for table, event, text in fetch(_RULES):
        if text is None:
            catalogue.is_complete, effects = False, frozenset({ANYTHING})
        else:
            effects = read(f"WITH {text}", "postgresql").all_effects  # so it is scanned from end to end
        for effect in effects:
            catalogue.add(table, frozenset({_EVENTS[event]}), effect, because="a rule", is_active=True)
    for child, parent, kind in fetch(_INHERITING):
        catalogue.add_shown(child, parent, is_view=False)
        if kind == "p":  # the partition key routes rows, and moves them when it changes
            catalogue.add(parent, ROW, Effect("insert", bare(child)))
        catalogue.add(parent, WRITES | {"alter", "truncate"}, Effect("", bare(child)))
    for table, kind, function, name in fetch(_TRIGGERS):
        verbs = frozenset(
            verb for bit, verb in ((4, "insert"), (8, "delete"), (16, "update"), (32, "truncate")) if kind & bit
        )
        effects = catalogue.functions.get(function.lower(), frozenset())
        catalogue.add_trigger(table, verbs, effects, f"the trigger {name!r}", rewrites=kind & 3 == 3)
    for parent, child, deleted, updated, columns, referenced in fetch(_FOREIGN_KEYS):
        add_action(catalogue, parent, child, columns, referenced, _ACTIONS.get(deleted, ""), _ACTIONS.get(updated, ""))
        truncated, because = Effect("truncate", bare(child)), f"a foreign key of {child!r}"  # by CASCADE
        catalogue.add(parent, frozenset({"truncate"}), truncated, because=because, is_active=True)
    for table, function, is_default in fetch(_CALLING):
        called, because = Effect("call", function.lower()), f"the function {function!r}"
        verbs = WRITES - {"delete"} if is_default else WRITES | {"truncate"}
        catalogue.add(table, verbs, called, because=because, is_active=True)
    # A partition's trigger may change the rows that are written to its parents; an UPDATE moves some from another.
    # PostgreSQL itself lists the row triggers of a partitioned table at its partitions, too.
    for shown in catalogue.shown(Effect("update", table) for table, _ in catalogue.rewritten):
        catalogue.rewritten.update((shown.name, verb) for verb in ROW)


def _does(language: str, volatile: str, source: str) -> frozenset[Effect]:
    if language in ("sql", "plpgsql"):
        return read_body(source, "postgresql")
    if language == "internal" or volatile != "v":
        return frozenset()
    return frozenset({ANYTHING})


def _after_head(definition: str) -> str:
    """Return the body of a function in the syntax of standard SQL."""
    return re.split(r"\b(?:BEGIN ATOMIC|RETURN)\b", definition or "", maxsplit=1)[-1]


# -- MySQL and MariaDB

#: Of all databases of the server: a write by a view or a foreign key may cross from one to another. The server takes
#: minutes to join these two for many thousands of tables.
_MYSQL_ACTIONS = """
    SELECT constraint_schema, constraint_name, table_name, referenced_table_name, delete_rule, update_rule
    FROM information_schema.referential_constraints"""
_MYSQL_KEYS = """
    SELECT constraint_schema, constraint_name, table_name, column_name, referenced_column_name
    FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL"""

_MYSQL_RELATIONS = """
    SELECT DISTINCT table_name FROM information_schema.tables
    WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"""
_MYSQL_TRIGGERS = """
    SELECT event_object_table, event_manipulation, action_timing, trigger_name, action_statement
    FROM information_schema.triggers WHERE trigger_schema <> 'sys'"""


def _read_mysql(catalogue: Catalogue, fetch: Fetch) -> None:
    """Read what the login may see; a text that is hidden from it may do anything."""
    # The server's own procedures in `mysql` may do anything. But no write can call them, and a CALL of what is not read
    # here counts as anything.
    for name, text in fetch(
        "SELECT routine_name, routine_definition FROM information_schema.routines "
        "WHERE routine_schema <> 'sys' AND NOT (routine_schema = 'mysql' AND routine_type = 'PROCEDURE')"
    ):
        name = routine(name, "mysql")
        catalogue.functions[name] = catalogue.functions.get(name, frozenset()) | _mysql_effects(text)
    for table, event, timing, name, text in fetch(_MYSQL_TRIGGERS):
        verbs, because = frozenset({event.lower()}), f"the trigger {name!r}"
        catalogue.add_trigger(table, verbs, _mysql_effects(text), because, rewrites=timing == "BEFORE")
    for base, view in _mysql_views(fetch):
        catalogue.add_view(base, view)
    # On a Mac the two tables may spell a name in two ways.
    actions = {_folded(each[:3]): each[3:] for each in fetch(_MYSQL_ACTIONS)}
    keys = [(actions.get(_folded(each[:3])), *each[2:]) for each in fetch(_MYSQL_KEYS)]
    for action, child, column, referenced in dict.fromkeys(keys):
        if action is not None:  # one that was dropped in between
            parent, deleted, updated = action
            add_action(catalogue, parent, child, [column], [referenced], deleted, updated)


def _mysql_views(fetch: Fetch) -> set[tuple[str, str]]:
    """Return each view with the tables and views that its text may name; all of them if the text is hidden."""
    words, names = partial(re.findall, r"\w+"), dict[str, list[str]]()
    for (name,) in fetch(_MYSQL_RELATIONS):
        names.setdefault(next(iter(words(name.lower())), ""), []).append(name)
    found = set[tuple[str, str]]()
    for view, text in fetch(
        "SELECT table_name, view_definition FROM information_schema.views WHERE table_schema <> 'sys'"
    ):
        has = set(words((text or "").lower()))
        for first in has | {""} if text else names:
            found.update(
                (name, view) for name in names.get(first, ()) if not text or has.issuperset(words(name.lower()))
            )
    return {(base, view) for base, view in found if base != view}


def _folded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _mysql_effects(text: str | None) -> frozenset[Effect]:
    return read_body(text, "mysql") if text else frozenset({ANYTHING})


_READERS: dict[str, Callable[[Catalogue, Fetch], None]] = {
    "sqlite": _read_sqlite,
    "postgresql": _read_postgresql,
    "mysql": _read_mysql,
}
