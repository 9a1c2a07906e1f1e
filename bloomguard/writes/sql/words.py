"""Sets of SQL keywords and functions, by what they mean for a statement's effects."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Statements that write no row. On PostgreSQL and SQLite they call no function either, on MySQL some do, as SHOW.
HARMLESS = _words("""
    abort analyze attach begin checkpoint close cluster comment commit deallocate desc describe detach discard end
    fetch flush grant kill listen lock move notify optimize prepare reassign reindex release reset revoke rollback
    savepoint security set show start unlisten unlock use vacuum
""")
#: Those without an expression on any database.
CALLING_NOTHING = _words("comment grant revoke")
#: Statements that are scanned from end to end for writes and calls.
SCANNED = _words("""
    copy declare delete insert merge replace select table truncate update values with
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
#: Kinds of objects that CREATE and ALTER name.
KINDS = _words("""
    access aggregate cast collation conversion database default domain event extension foreign function group index
    language large materialized operator policy procedure publication role routine rule schema sequence server
    statistics subscription system table tablespace text transform trigger type user view
""")
#: Words between CREATE or ALTER and the kind.
BEFORE_KIND = _words("""
    aggregate bitmap constraint editionable force foreign fulltext global ignore local materialized noneditionable
    offline online or procedural public recursive replace spatial temp temporary trusted undo unique unlogged vector
    virtual
""")
#: Kinds whose names are those of relations: PostgreSQL renames a table by ALTER INDEX as well.
RELATIONS = _words("index sequence table view")
#: Kinds whose ALTER changes no row.
ALTERED = _words("""
    aggregate collation conversion database default event function group language large operator policy procedure
    publication role routine rule statistics system tablespace text trigger user
""")
#: Extensions of PostgreSQL whose functions write no tables but their own.
EXTENSIONS = _words("""
    bloom btree_gin btree_gist citext cube earthdistance fuzzystrmatch hstore intarray isn ltree moddatetime
    pg_stat_statements pg_trgm pgcrypto pgrowlocks pgstattuple plpgsql postgis postgis_raster postgis_topology seg
    tablefunc timescaledb tsm_system_rows unaccent uuid-ossp vector
""")
#: SQLite's pragmas that write no row.
PRAGMAS = _words("""
    analysis_limit application_id auto_vacuum automatic_index busy_timeout cache_size cache_spill
    case_sensitive_like cell_size_check collation_list compile_options database_list defer_foreign_keys encoding
    foreign_key_check foreign_key_list foreign_keys freelist_count full_column_names fullfsync function_list
    hard_heap_limit ignore_check_constraints incremental_vacuum index_info index_list index_xinfo integrity_check
    journal_mode journal_size_limit legacy_alter_table locking_mode max_page_count mmap_size module_list optimize
    page_count page_size pragma_list query_only quick_check read_uncommitted recursive_triggers
    reverse_unordered_selects secure_delete short_column_names shrink_memory soft_heap_limit synchronous table_info
    table_list table_xinfo temp_store threads trusted_schema user_version wal_autocheckpoint wal_checkpoint
""")
#: First words of ALTER TABLE actions that keep all rows and values.
TABLE_SETTINGS = _words("""
    algorithm auto_increment character cluster collate comment default detach disable drop enable engine force lock
    no owner replica reset row_format validate
""")
#: Words that are not expected in such an action: with one of them it is another action.
UNEXPECTED = _words("attach change convert exchange import modify rename select")
#: Words after ALTER COLUMN ... SET that keep the column's values.
COLUMN_SETTINGS = _words("""
    ( compression default generated not options statistics storage
""")
#: Words between INSERT, UPDATE or DELETE and the table.
MODIFIERS = _words("or replace rollback abort fail ignore low_priority high_priority delayed overwrite")
#: Words before the INTO of an INSERT (not of SELECT ... INTO).
BEFORE_INTO = _words("insert replace merge ignore low_priority high_priority delayed rollback abort fail")
#: Words after the BEGIN of a transaction.
TRANSACTIONS = _words("transaction work deferred immediate exclusive isolation read not deferrable")
