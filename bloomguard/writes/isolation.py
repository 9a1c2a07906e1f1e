"""What is known of a session without asking the server: its isolation level, its role, and a transaction begun by hand.

Where each statement reads what is committed by then, a SELECT that is not sent changes nothing. But a snapshot begins
with the first statement that reads, and at SERIALIZABLE the database compares what transactions have read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from django.db import connections

from ..process import seconds
from ..state.connection import fetch_uncounted
from ..state.transactions import has_own_transaction

_DEFAULT_SECONDS = 60.0
_SETS = re.compile(r"\b(?:SET|BEGIN|START)\b", re.IGNORECASE)

#: SQL that begins no transaction on MySQL and MariaDB, or none that outlasts the statement.
_BEGINS_NONE = re.compile(
    r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE|REPLACE|SHOW|SET (?:SESSION TRANSACTION|SQL_AUTO_IS_NULL))\b[^;]*",
    re.IGNORECASE,
)

#: The databases of MySQL and MariaDB to which this process has sent any other SQL.
_begun: set[str] = set()
#: The databases to which this process has sent a statement that may change the level of their transactions.
_changed: set[str] = set()
#: Those to which it has sent a statement that may give a session another role than the one that it logs in with.
changed_roles: set[str] = set()
_SETS_ROLE = re.compile(
    r"\bSET\s+(?:LOCAL\s+|SESSION\s+)?(?:ROLE|SESSION\s+AUTHORIZATION)\b"
    r"|\bset_config\s*\(\s*(?:'(?:role|session_authorization)'|[^'\s])",
    re.IGNORECASE,
)
_READ_COMMITTED = ("read committed", "read uncommitted")


def note(text: str, connection: Any) -> None:
    """Record whether ``text`` may change the role or the level of the alias's transactions, or begin one.

    It holds for as long as the process lives, so one look at each text is enough.
    """
    if connection.vendor == "mysql" and connection.alias not in _begun and not _BEGINS_NONE.fullmatch(text):
        _begun.add(connection.alias)
    if connection.vendor == "postgresql" and connection.alias not in changed_roles and _SETS_ROLE.search(text):
        changed_roles.add(connection.alias)
    if connection.vendor == "mysql" and connection.isolation_level:  # Django sends it to each new connection
        text = text.replace(f"SET SESSION TRANSACTION ISOLATION LEVEL {connection.isolation_level.upper()}", "")
    if _may_change(text):
        _changed.add(connection.alias)


def _may_change(text: str) -> bool:
    lower = text.lower()
    if "set_config" in lower:  # a function, so a query that writes nothing may call it
        return True
    # A fiftieth of the time that a pattern takes in many values. Columns have the last two names, too.
    names_one = "isolation" in lower or ("transaction" in lower and ("snapshot" in lower or "characteristics" in lower))
    return names_one and _SETS.search(text) is not None


def is_by_hand(connection: Any) -> bool:
    """Return whether a transaction is open outside ``atomic``. Asks a server only after SQL that may have begun one."""
    if connection.vendor == "mysql" and connection.alias not in _begun:
        return connection.connection is not None and not connection.in_atomic_block and not connection.autocommit
    return has_own_transaction(connection)


def reads_what_is_committed(connection: Any) -> bool:
    """Return whether each statement of the open ``atomic`` block reads what is committed by then.

    So a SELECT may be left out, without a change for other statements.
    """
    if connection.vendor == "sqlite":
        return True  # it has one writer at a time; docs/limits.md says what a later snapshot may see
    if connection.alias in _changed:
        return False
    if connection.vendor == "postgresql":
        if "isolation_level" in connection.settings_dict["OPTIONS"]:
            return connection.isolation_level.name in ("READ_COMMITTED", "READ_UNCOMMITTED")
        return _default_level(connection.alias, int(seconds() // _DEFAULT_SECONDS)) in _READ_COMMITTED
    return connection.vendor == "mysql" and connection.isolation_level in _READ_COMMITTED


@lru_cache(maxsize=100)
def _default_level(alias: str, minute: int) -> str:
    """Return the level of PostgreSQL's sessions; queried once in each ``minute``, which begins no snapshot."""
    return str(fetch_uncounted(connections[alias], "SHOW default_transaction_isolation")[0][0])
