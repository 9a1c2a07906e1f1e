"""How PostgreSQL, SQLite and MariaDB aggregate the keys of a page into one value, and how that is unpacked."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..exceptions import RebuildError

_CAUSE = "the column has other values too, or MariaDB cut the page: then set max_allowed_packet to 1 MB or more"


@dataclass(frozen=True)
class Scan:
    """How a database aggregates a page of keys into one value.

    ``gather`` is the SQL aggregate over ``bloomguard_key``; ``unpack(value, rows)`` returns the keys, and raises
    :class:`RebuildError` if some are missing. ``last(value)`` returns the key after which the next page begins: to find
    the greatest one itself would take the database a tenth of the scan. Both raise :class:`RebuildError` for other
    values than keys. ``prefix`` is in front of the statement, and a page has at most ``most_rows``. ``by_ranges``:
    where integers are dense, a range of them is read faster than rows up to a LIMIT.
    """

    gather: str
    unpack: Callable[[Any, int], Any]
    last: Callable[[Any], Any]
    prefix: str = ""
    most_rows: int = 200_000
    by_ranges: bool = False


def _integers(numbers: Any, rows: int) -> Any:
    if len(numbers) != rows:
        raise RebuildError(f"{rows} rows of a page hold {len(numbers)} integers: {_CAUSE}")
    return numbers


def _binary_integers(gathered: Any, rows: int) -> Any:
    import numpy as np

    return _integers(np.frombuffer(gathered, ">i8").astype(np.int64), rows)


def _decimal_integers(gathered: Any, rows: int) -> Any:
    import numpy as np

    try:
        numbers: Any = np.fromstring(gathered, np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        numbers = []
    # Older versions of numpy only warn, and return the part that they could parse.
    whole = len(numbers) > 0 and gathered.rpartition(",")[2] == str(numbers[-1])
    return _integers(numbers if whole else numbers[:-1], rows)


def _greatest_integer(gathered: Any) -> int:
    import numpy as np

    return int(np.frombuffer(gathered, ">i8").max())


def _last_integer(gathered: str) -> int:
    # SQLite gathers in the order of the page. If it did not, the next page would repeat rows, and none would be lost.
    try:
        return int(gathered[gathered.rfind(",") + 1 :])
    except ValueError:
        raise RebuildError(f"a page of integers ends otherwise: {_CAUSE}") from None


def _uuids(data: bytes, rows: int) -> bytes:
    if len(data) != 16 * rows:
        raise RebuildError(f"{rows} rows of a page hold {len(data)} bytes of UUIDs: {_CAUSE}")
    return data


def _hexadecimal_uuids(gathered: str, rows: int) -> bytes:
    try:
        data = bytes.fromhex(gathered.replace("-", ""))
    except ValueError:
        data = b""
    return _uuids(data, rows)


def _last_uuid(gathered: str) -> uuid.UUID:
    digits = gathered[-36:].replace("-", "")[-32:]  # MariaDB's own type has dashes
    try:
        return uuid.UUID(digits)
    except ValueError:
        raise RebuildError(f"a page of UUIDs ends otherwise: {_CAUSE}") from None


def _greatest_uuid(data: bytes) -> uuid.UUID:
    import numpy as np

    words = np.frombuffer(data, ">u8").reshape(-1, 2)
    first = words[:, 0].max()
    second = words[words[:, 0] == first, 1].max()
    return uuid.UUID(int=int(first) << 64 | int(second))


#: MariaDB cuts a text that is longer than this setting, or than ``max_allowed_packet``, with no more than a warning. So
#: the pages are small, and each key has a fixed length, or a comma behind it: what was cut holds fewer keys than rows.
_MOST_BYTES = 1 << 20
_WHOLE = f"SET STATEMENT group_concat_max_len = {_MOST_BYTES} FOR "

SCANS = {
    ("postgresql", "integer"): Scan(
        "string_agg(int8send(bloomguard_key::int8), ''::bytea)", _binary_integers, _greatest_integer
    ),
    ("postgresql", "uuid"): Scan(
        "string_agg(uuid_send(bloomguard_key), ''::bytea)",
        lambda gathered, rows: _uuids(bytes(gathered), rows),
        _greatest_uuid,
    ),
    ("sqlite", "integer"): Scan("group_concat(bloomguard_key, ',')", _decimal_integers, _last_integer),
    ("sqlite", "uuid"): Scan("group_concat(bloomguard_key, '')", _hexadecimal_uuids, _last_uuid),
    ("mariadb", "integer"): Scan(
        "group_concat(bloomguard_key, ',' SEPARATOR '')",
        lambda gathered, rows: _decimal_integers(gathered.rpartition(",")[0], rows),
        lambda gathered: _last_integer(gathered.rpartition(",")[0]),
        prefix=_WHOLE,
        most_rows=_MOST_BYTES // len("-9223372036854775808,"),
        by_ranges=True,  # it copies the rows of a LIMIT into a temporary table first
    ),
    ("mariadb", "uuid"): Scan(
        "group_concat(bloomguard_key SEPARATOR '')",
        _hexadecimal_uuids,
        _last_uuid,
        prefix=_WHOLE,
        most_rows=_MOST_BYTES // len(str(uuid.UUID(int=0))),
    ),
}
