"""The words of SQL by which statements, tables and functions are recognized."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: First words of the statements that write nothing but what :meth:`Statement.scan` finds. After some of them any
#: statement may follow, as in EXPLAIN, or in MariaDB's SET STATEMENT ... FOR.
LEADING = _words("analyze desc describe explain set")
SCANNED = LEADING | _words("""
    abort begin check checkpoint checksum close cluster comment commit copy deallocate declare delete detach
    discard end fetch flush grant handler insert kill listen lock merge move notify optimize prepare reindex release
    replace reset revoke rollback savepoint select show start table truncate unlisten unlock update use vacuum
    values with
""")
#: Words before a bracket that write nothing: SQL keywords, and the functions that queries call most.
NEVER_FUNCTIONS = _words("""
    abs all and any array array_agg as asc avg between bit_and bit_or bool_and bool_or both by case cast ceil char
    char_length check coalesce concat concat_ws conflict count cube cume_dist current_date current_timestamp currval
    date date_part date_trunc decimal dense_rank desc distinct else end except exists extract fields filter first
    first_value float floor following format from full greatest group group_concat grouping having ifnull ilike in
    inner intersect interval into is isnull join json_agg json_extract json_group_array json_object jsonb_agg
    jsonb_build_object key lag last last_value lateral lead least left length like limit lower matched materialized
    max md5 min mod nextval not notnull now nth_value ntile nullif nulls numeric of offset on only or order over
    partition percent_rank pg_get_serial_sequence plainto_tsquery position power preceding primary printf random
    range rank recursive references repeat replace returning reverse right rollup round row row_number rows select
    set set_config sets setweight sign similar some stddev_pop stddev_samp strftime string_agg strpos substr
    substring sum table then time timestamp to to_char to_json to_jsonb to_timestamp to_tsquery to_tsvector total
    trim trunc ts_rank union unique unnest update upper using values var_pop var_samp varchar when where window with
    within xmltable
""")
#: Extensions of PostgreSQL whose functions write no tables but their own.
EXTENSIONS = _words("""
    bloom btree_gin btree_gist citext cube earthdistance fuzzystrmatch hstore intarray isn ltree moddatetime
    pg_stat_statements pg_trgm pg_uuidv7 pgcrypto pgrowlocks pgstattuple plpgsql postgis postgis_raster
    postgis_topology seg tablefunc timescaledb tsm_system_rows unaccent uuid-ossp vector
""")
#: What CREATE makes without touching a row.
KINDS = _words("""
    collation database domain function policy procedure role rule schema sequence statistics text trigger type user
""")
#: Words between CREATE or ALTER and the kind.
BEFORE_KIND = _words("""
    constraint foreign fulltext global local materialized or recursive replace spatial temp temporary unique unlogged
    virtual
""")
#: Kinds whose names are those of relations: PostgreSQL renames a table by ALTER INDEX as well.
RELATIONS = _words("index sequence table view")
#: First words of the actions of ALTER TABLE that keep all rows and values.
KEEPING = _words("algorithm detach disable drop enable lock owner validate")
#: Words of an ALTER TABLE before the name of another table, or a new name.
BEFORE_NEW = _words("column index inherit partition table to")
#: The two words after the column of an ALTER COLUMN that keeps all values.
KEEPING_COLUMN = {(verb, what) for verb in ("drop", "set") for what in ("default", "not")}
#: Words between INTO and a table, or between INSERT or REPLACE and a table, where INTO may be left out.
BEFORE_TABLE = _words("delayed global high_priority ignore local low_priority only table temp temporary unlogged")
#: Words of a statement that may also update rows of the table after its INTO; and of one that may delete some.
UPSERTING = ("conflict", "duplicate", "merge", "replace")
REPLACING = ("merge", "replace")
#: SQLite's names for the primary key that every table has.
ROWID = frozenset({"rowid", "oid", "_rowid_"})
#: Tables of the database itself, by which one may change its definitions.
SYSTEM_TABLES = re.compile(
    r"sqlite_(?:temp_)?(?:master|schema)|pg_(?:attrdef|attribute|authid|cast|class|constraint|depend|enum|inherits|"
    r"namespace|operator|policy|proc|rewrite|trigger|type)"
)
