"""Base classes of stores and of generations, where each generation is one complete build of a guard's filter.

Stores also keep metrics, in pages of fixed size and fixed retention beside the filters.

A shard is trusted only if both of its tags have the expected value and its body matches its checksum. An add never
creates a generation, so a missing generation is an error and not an empty filter.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from statistics import mean
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from django.core.checks import CheckMessage

from ..exceptions import StoreError, UnknownGeneration
from ..filters import CorruptFilter, DiscardUnsupported, KeyHash
from ..filters.codec import Frame, Header
from ..filters.layout import SHARD_BYTES, Layout

if TYPE_CHECKING:
    from ..filters.base import BodyFilter, Keys, RowKeys

#: Map a header's key ID to the key hash; ``None`` if no current secret and guard definition matches.
FindKeyHash = Callable[[int], KeyHash | None]

#: A page of metrics has 240 rows of 24 cells, each an unsigned big-endian 32-bit number that stops at its maximum.
#: A row covers a minute (then a page covers four hours) or an hour (ten days).
MINUTE, HOUR = 60, 3_600
ROWS, COLUMNS = 240, 24
PAGE_BYTES = 4 * ROWS * COLUMNS
#: Retention in seconds of rows that cover a minute and an hour.
KEPT_SECONDS = {MINUTE: 24 * HOUR, HOUR: 31 * 24 * HOUR}

_HIGHEST = 2**32 - 1


def bound(layout: Layout, guard: str, name: str, place: str = "") -> Layout:
    """Return ``layout`` with the tag of generation ``name`` of ``guard`` at ``place``.

    The tag is a keyed hash of all of them, so another guard's or generation's data, or a copy in another place, has a
    different tag, and a header with the right tag cannot be forged without the secret.
    """
    tag = _tag(layout.header, layout.key_hash, guard, name, place)
    return replace(layout, header=replace(layout.header, tag=tag))


def _tag(header: Header, key_hash: KeyHash, guard: str, name: str, place: str) -> int:
    digest = blake2b(replace(header, tag=0).pack(), key=key_hash.secret, digest_size=8, person=b"bloomguard tag")
    digest.update(f"{guard}\0{name}\0{place}".encode())
    return int.from_bytes(digest.digest(), "big") >> 1 or 1  # not 0, since BITFIELD reads a missing key as 0


class Generation(ABC):
    """One complete build of a guard's filter, in the shards that ``layout`` describes."""

    name: str
    layout: Layout
    #: The store's identity when it was created or opened; empty if the store cannot be replaced meanwhile.
    identity: str = ""
    #: Whether an event loop can await :meth:`amight_contain`. If not, checks of a remote store run in a thread.
    supports_async: bool = False
    #: ``might_contain(key: bytes) -> bool``. Raises :class:`CorruptFilter` if a shard cannot be trusted and
    #: :class:`StoreError` if the store does not answer.
    might_contain: Callable[[bytes], bool]

    def might_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        """Return :attr:`might_contain` of each key, in order; raises the same exceptions."""
        return [self.might_contain(key) for key in keys]

    async def amight_contain(self, key: bytes) -> bool:
        """Async version of :attr:`might_contain`, of a generation with :attr:`supports_async`."""
        raise NotImplementedError

    @abstractmethod
    def is_recent(self, key: bytes) -> bool:
        """Return whether ``key`` may have been added by :meth:`add`, here or in another process; false is certain.

        Raises as :attr:`might_contain`.
        """

    async def ais_recent(self, key: bytes) -> bool:
        """Async version of :meth:`is_recent`, of a generation with :attr:`supports_async`."""
        raise NotImplementedError

    @abstractmethod
    def add(self, keys: RowKeys, *, once: bool = False) -> None:
        """Add keys and verify that they were stored; raises :class:`CorruptFilter` or :class:`StoreError` if not.

        Filters that support discards count: a key that was added twice has to be discarded twice. With ``once=True``,
        for filters from which nothing is discarded, they do not add a key that they have.
        """

    @abstractmethod
    def add_many(self, keys: Keys) -> None:
        """Add many keys, in any form that :meth:`KeyHash.digests` accepts, before :meth:`seal`.

        A generation that this process created may keep the keys until then where no check finds them.
        """

    def discard(self, keys: Iterable[bytes]) -> None:
        """Discard each key once. A key that is saturated or missing changes nothing.

        Do not retry: a failed call may have discarded some keys. Raises :class:`DiscardUnsupported`,
        :class:`CorruptFilter` or :class:`StoreError`.
        """
        raise DiscardUnsupported(
            f"generation {self.name} is a {self.layout.kind} filter, which cannot discard; choose a cuckoo filter"
        )

    @abstractmethod
    def filters(self) -> Iterable[BodyFilter]:
        """Return the filters of all shards, in order; a store on a server returns copies of their current bytes.

        Raises :class:`CorruptFilter` or :class:`StoreError`.
        """

    def approximate_size(self) -> int:
        """Return the estimated number of keys; raises the exceptions of :meth:`filters`."""
        return sum(each.approximate_size() for each in self.filters())

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """Return the measured false-positive rate, from ``probes`` random keys spread evenly over the shards."""
        share = -(-probes // self.layout.header.shards)
        return mean(each.measure_error_rate(share) for each in self.filters())

    @abstractmethod
    def read_shard(self, shard: int) -> Frame:
        """Return a copy of a shard, verified by its checksum; raises :class:`CorruptFilter` or :class:`StoreError`."""

    @abstractmethod
    def merge(self, shard: int, body: memoryview) -> int:
        """Set all bits of ``body``, the same shard of a generation with this layout; return how many were not set.

        Only for filters with ``plain_bits``. Raises :class:`CorruptFilter` or :class:`StoreError`.
        """

    def seal(self) -> None:  # noqa: B027
        """Complete the generation and make it durable; called once, before publishing. Raises :class:`StoreError`."""


class Page(NamedTuple):
    """A guard's page of rows of ``step`` seconds; it starts at Unix time ``240 * step * number``."""

    guard: str
    step: int
    number: int

    def is_over(self, page: Page) -> bool:
        """Return whether to delete this page when ``page`` is written: it is expired, or its time is in the future."""
        if (self.guard, self.step) != (page.guard, page.step):
            return False
        span = ROWS * self.step
        return not -KEPT_SECONDS[self.step] - span < (self.number - page.number) * span <= span


def cells_of(page: bytes) -> array[int]:
    """Return the numbers of a page, row by row; raises :class:`StoreError` if its length is wrong."""
    if len(page) != PAGE_BYTES:
        raise StoreError(f"a page of metrics has {PAGE_BYTES:,} bytes; this one has {len(page):,}")
    cells = array("I", page)
    if sys.byteorder == "little":
        cells.byteswap()
    return cells


def add_to(page: bytes, cells: Mapping[int, int]) -> bytes:
    """Return ``page`` with numbers added to its cells."""
    numbers = cells_of(page)
    for cell, number in cells.items():
        numbers[cell] = min(numbers[cell] + number, _HIGHEST)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


class Store(ABC):
    """Base class of stores, which hold generations. ``OPTIONS`` of the setting are passed as keyword arguments."""

    #: Whether a check waits for the network. An event loop must not call the sync methods of such a store.
    is_remote: ClassVar[bool] = False
    #: Whether its filters are in the memory of the process that builds them, so that no other one has them.
    is_of_one_process: ClassVar[bool] = False
    #: Maximum size of a shard of a new generation, in bytes.
    shard_bytes: int = SHARD_BYTES

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def place(self) -> str:
        """Where a user of this host finds the store, for messages; empty if its settings alone say that."""
        return ""

    def location(self, guard: str, name: str) -> str:
        """Return where a user finds a generation, to delete it by hand."""
        return name

    @property
    def patient(self) -> Store:
        """This store, for a rebuild: it waits longer also for what a request asks of it."""
        return self

    @property
    @abstractmethod
    def identity(self) -> str:
        """An ID of this store, at most 200 characters, which changes with a restart that may have lost writes.

        If it is empty, no filter is built or trusted. Raises :class:`StoreError` if the store cannot determine it.
        """

    @abstractmethod
    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        """Create an empty generation with its own tag; raises :class:`StoreError` with the sizes if it does not fit."""

    @abstractmethod
    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        """Open a generation; raises :class:`UnknownGeneration`, :class:`CorruptFilter` or :class:`StoreError`.

        ``identity`` is the store identity that the caller trusts, by default the current one. If the server behind the
        store is replaced while the generation is open, replies with another identity are refused.
        """

    @abstractmethod
    def drop(self, guard: str, name: str) -> None:
        """Delete a generation, if it exists. Raises :class:`StoreError` if it cannot be deleted."""

    def forget(self, guard: str) -> None:  # noqa: B027
        """Delete what a guard without generations has left, but for what expires. Raises :class:`StoreError`."""

    @abstractmethod
    def names(self, guard: str) -> list[str]:
        """Return the names of a guard's generations, sealed or not. Raises :class:`StoreError`."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the number of bytes available for a new generation, ``None`` if it is unknown."""

    # Metrics are stored beside the filters. A store need not support them.

    def add_metrics(self, page: Page, cells: Mapping[int, int]) -> None:  # noqa: B027
        """Add numbers to cells of a metrics page; create the page if needed. Raises :class:`StoreError`."""

    def read_metrics(self, pages: Sequence[Page]) -> list[bytes]:
        """Return the bytes of each page, empty for a missing page. Raises :class:`StoreError`."""
        return [b""] * len(pages)

    def check(self) -> list[CheckMessage]:
        """Return system check messages about the store's options."""
        return []

    def check_deployed(self) -> list[CheckMessage]:
        """Return messages for ``check --deploy``; this may query a server."""
        return []

    def _layout(
        self, guard: str, name: str, place: str, header: Header, size: int, find_key_hash: FindKeyHash
    ) -> Layout:
        if header.frame_bytes * header.shards != size:  # before memory is allocated by the header's numbers
            raise CorruptFilter(
                f"generation {name} has {size:,} bytes; its header says {header.shards} x {header.frame_bytes:,}"
            )
        key_hash = find_key_hash(header.key_id)
        if key_hash is None:
            raise UnknownGeneration(
                f"generation {name} was built with another SECRET_KEY or another definition of its guard; rebuild it"
            )
        if header.tag != _tag(header, key_hash, guard, name, place):
            raise CorruptFilter(
                f"the data of generation {name} of {guard} belongs to another generation or is a copy; rebuild it"
            )
        return Layout.of(header, key_hash)
