"""The protocol of all filters, and the base class of filters whose whole state is one *body*.

A body is a block of memory: on the heap, in a mapped file, or fetched from a server. Readers need no lock. A writer
takes a lock, gets the changes from :meth:`BodyFilter.writes` and applies them in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol

from . import bulk, codec, sizing
from .codec import Header
from .errors import CorruptFilter, DiscardUnsupported, InvalidShape, TooLarge
from .hashing import KeyHash, compile_function
from .serial import Serial, key_hash_of, memory_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    U64 = NDArray[np.uint64]
    Keys = Iterable[bytes] | Iterable[int] | bytes | U64 | NDArray[np.int64]
    #: The keys of written rows: one by one, or, if all are integers, in an array.
    RowKeys = Sequence[bytes] | NDArray[np.int64]
    Writes = list[tuple[int, bytes]]


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of a filter; ``size`` is the number of keys, exact or estimated, depending on the kind."""

    kind: str
    capacity: int
    error_rate: float
    size: int
    bytes: int
    fill: float
    expected_error_rate: float


class Filter(Protocol):
    """The interface of every filter. Check ``supports_discard``, not the class, before you call :meth:`discard`."""

    kind: ClassVar[str]
    supports_discard: ClassVar[bool]

    @property
    def capacity(self) -> int:
        """Number of keys up to which the false-positive rate stays at :attr:`error_rate`."""

    @property
    def error_rate(self) -> float:
        """The false-positive rate at :attr:`capacity` keys, between 0 and 1."""

    @property
    def might_contain(self) -> Callable[[bytes], bool]:
        """``might_contain(key)``: ``False`` is certain, ``True`` is wrong at the error rate at most."""

    def __contains__(self, key: bytes) -> bool: ...
    def add(self, key: bytes) -> None:
        """Add ``key``. Raises :class:`FilterFull` if a scalable filter has all its layers."""

    def add_many(self, keys: Keys) -> None:
        """Add many keys: an iterable of ``bytes``, or any other form that :meth:`KeyHash.digests` takes.

        Raises :class:`InvalidShape` for other forms.
        """

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; returns a boolean array of shape ``(n,)``. Raises :class:`InvalidShape` as ``add_many``."""

    def discard(self, key: bytes) -> bool:
        """Undo one add of ``key``; returns whether it was found. Raises :class:`DiscardUnsupported`."""

    def clear(self) -> None:
        """Remove all keys."""

    def stats(self) -> Stats:
        """Return size, fill and expected error rate."""

    def to_bytes(self) -> bytes:
        """Return the filter as one checksummed frame."""


class Shape(Protocol):
    """The layout of a body: which bits, counters or slots lie where."""

    @property
    def capacity(self) -> int:
        """Number of keys up to which the false-positive rate stays at :attr:`error_rate`."""

    @property
    def error_rate(self) -> float:
        """The false-positive rate at :attr:`capacity` keys, between 0 and 1."""

    @property
    def body_bytes(self) -> int:
        """The size of the body in bytes."""

    @property
    def parameters(self) -> tuple[int, ...]:
        """Integers that the header stores to describe the shape; each kind defines their order."""


class BodyFilter(Serial):
    """A filter whose whole state is ``body``. Subclasses look up, add and discard digests."""

    kind: ClassVar[str]
    supports_discard: ClassVar[bool] = False
    #: True if a key is in the filter exactly when all bits of ``layout.positions(digest)`` are set, so that a server
    #: with bit commands can check and add keys itself.
    plain_bits: ClassVar[bool] = False

    __slots__ = (
        "__weakref__",
        "body",
        "digest",
        "key_hash",
        "layout",
        "might_contain",
        "might_contain_digest",
        "shard",
    )

    layout: Any  # a Shape of the kind
    key_hash: KeyHash
    body: memoryview
    shard: int
    #: ``digest(key: bytes) -> int``: the argument of :meth:`writes` and :attr:`might_contain_digest`.
    digest: Callable[[bytes], int]
    #: ``might_contain(key: bytes) -> bool``: ``False`` is certain, ``True`` is wrong at the error rate at most.
    might_contain: Callable[[bytes], bool]
    #: The same check for a digest.
    might_contain_digest: Callable[[int], bool]
    #: ``growing(capacity, error_rate, **options)``: the shape of a shard in a store, which may get more keys.
    growing: ClassVar[Callable[..., Shape]]

    # Subclasses define these.

    @classmethod
    def plan(
        cls, capacity: int, error_rate: float, *, shard_bytes: int | None = None, **options: Any
    ) -> tuple[Shape, int]:
        """Return the shape of one shard of at most ``shard_bytes`` and the number of shards; allocates nothing."""
        whole = cls.growing(capacity, error_rate, **options)
        shards = 1 if shard_bytes is None else -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            whole = cls.growing(sizing.fullest_shard(capacity, shards), error_rate, **options)
        return whole, shards

    @classmethod
    def check_keys(cls, key_hash: KeyHash) -> None:
        """Raise :class:`InvalidShape` if this kind cannot hold keys of this width."""

    @classmethod
    def shape_of(cls, header: Header) -> Shape:
        """Return the shape that a header's parameters describe. Raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _ready(self) -> None:
        """Set ``digest``, ``might_contain`` and ``might_contain_digest`` for the attached body."""
        raise NotImplementedError

    def writes(self, digest: int) -> Writes:
        """Return the changes that add ``digest``, ``(offset, bytes)`` in order; does not apply them."""
        raise NotImplementedError

    def discard_writes(self, digest: int) -> Writes:
        """Return the changes, in order, that undo one add of ``digest``; empty if it is not in the filter."""
        raise DiscardUnsupported(
            f"a {self.kind} filter cannot discard; check supports_discard, or choose a cuckoo filter"
        )

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        """Add many digests: their low 60 bits and, for the kinds that use them, their high 64; shape ``(n,)``."""
        raise NotImplementedError

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        """Check many digests; returns a boolean array of shape ``(n,)``."""
        raise NotImplementedError

    @property
    def fill(self) -> float:
        """Share of the bits, counters or slots in use, 0 to 1."""
        raise NotImplementedError

    def approximate_size(self) -> int:
        """Estimate the number of keys from the body."""
        raise NotImplementedError

    def expected_error_rate(self) -> float:
        """Return the false-positive rate at the current fill."""
        raise NotImplementedError

    # The digest gives the shard of a key; the bitmap overrides these to shard by range.

    @classmethod
    def locator(cls, header: Header, key_hash: KeyHash) -> Callable[[bytes], tuple[int, int]]:
        """Return ``locate(key) -> (shard, digest)`` for a build whose first header is ``header``."""
        shard = f"(d >> 64) % {header.shards}" if header.shards > 1 else "0"
        return compile_function("key", key_hash.names(), f"d = {key_hash.expression}", f"return {shard}, d")

    @classmethod
    def locate_many(cls, header: Header, key_hash: KeyHash, keys: Keys) -> tuple[U64, U64, U64]:
        """Return the shard, and the low and high part of the digest, of each key; all of shape ``(n,)``."""
        import numpy as np

        low, high = key_hash.digests(keys)
        return high % np.uint64(header.shards), low, high

    @classmethod
    def checker(cls, header: Header, key_hash: KeyHash, filters: list[Any]) -> Callable[[bytes], bool]:
        """Return one ``might_contain(key)`` for all shards."""
        if len(filters) == 1:
            check: Callable[[bytes], bool] = filters[0].might_contain
            return check
        names = key_hash.names() | {"checks": [each.might_contain_digest for each in filters]}
        return compile_function(
            "key", names, f"d = {key_hash.expression}", f"return checks[(d >> 64) % {len(filters)}](d)"
        )

    # The rest is the same for all kinds.

    def _allocate(self, shape: Shape, key_hash: KeyHash, max_bytes: int | None) -> None:
        limit = memory_bytes() if max_bytes is None else max_bytes
        if shape.body_bytes > limit:
            raise TooLarge(
                f"{shape.capacity:,} keys at {shape.error_rate:.3g} take {shape.body_bytes:,} bytes as a {self.kind} "
                f"filter, over the limit of {limit:,}; lower the capacity or raise error_rate or max_bytes"
            )
        self._attach(shape, key_hash, memoryview(bytearray(shape.body_bytes)))

    def _attach(self, shape: Shape, key_hash: KeyHash, body: memoryview, shard: int = 0) -> None:
        self.check_keys(key_hash)
        self.layout, self.key_hash, self.body, self.shard = shape, key_hash, body, shard
        self._ready()

    @classmethod
    def trusted_shape(cls, header: Header, key_hash: KeyHash) -> Shape:
        """Check all values of a header and return its shape. Raises :class:`CorruptFilter`."""
        try:
            if header.kind != cls.kind:
                raise InvalidShape(f"a {header.kind} filter, but a {cls.kind} filter is expected")
            sizing.check_capacity(header.capacity)
            sizing.check_error_rate(header.error_rate)
            shape = cls.shape_of(header)
            if shape.body_bytes != header.body_bytes:
                raise InvalidShape(f"{header.body_bytes} bytes, but its parameters need {shape.body_bytes}")
            if header.width != key_hash.width:
                raise InvalidShape(f"made for keys of width {header.width}, but the keys have width {key_hash.width}")
        except InvalidShape as error:
            raise CorruptFilter(str(error)) from error
        return shape

    @classmethod
    def attach(cls, header: Header, body: memoryview, key_hash: KeyHash) -> Self:
        """Return the filter over ``body``, which is shared, not copied. Raises :class:`CorruptFilter`."""
        shape = cls.trusted_shape(header, key_hash)
        if shape.body_bytes != len(body):
            raise CorruptFilter(f"{len(body)} bytes, but its parameters need {shape.body_bytes}")
        self = cls.__new__(cls)
        try:
            self._attach(shape, key_hash, body, header.shard)
        except InvalidShape as error:
            raise CorruptFilter(str(error)) from error
        return self

    @property
    def capacity(self) -> int:
        """Number of keys up to which the false-positive rate stays at :attr:`error_rate`."""
        capacity: int = self.layout.capacity
        return capacity

    @property
    def error_rate(self) -> float:
        """The false-positive rate at :attr:`capacity` keys."""
        rate: float = self.layout.error_rate
        return rate

    def __contains__(self, key: bytes) -> bool:
        return self.might_contain(key)

    def add(self, key: bytes) -> None:
        """Add ``key``."""
        self._apply(self.writes(self.digest(key)))

    def discard(self, key: bytes) -> bool:
        """Undo one add of ``key``; returns whether it was found. Raises :class:`DiscardUnsupported`."""
        writes = self.discard_writes(self.digest(key))
        self._apply(writes)
        return bool(writes)

    def _apply(self, writes: Writes) -> None:
        body = self.body
        for offset, data in writes:
            body[offset : offset + len(data)] = data

    def digests(self, keys: Keys) -> tuple[U64, U64 | None]:
        """Return the arguments of :meth:`add_digests` for many keys."""
        return self.key_hash.digests(keys)

    def add_many(self, keys: Keys) -> None:
        """Add many keys: an iterable of ``bytes``, or any other form that :meth:`KeyHash.digests` takes."""
        bulk.add_keys(self, keys)

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; returns a boolean array of shape ``(n,)``."""
        return self.contains_digests(*self.digests(keys))

    def clear(self) -> None:
        """Remove all keys."""
        import numpy as np

        np.frombuffer(self.body, np.uint8)[:] = 0

    def stats(self) -> Stats:
        """Return size, fill and expected error rate."""
        return Stats(
            kind=self.kind,
            capacity=self.capacity,
            error_rate=self.error_rate,
            size=self.approximate_size(),
            bytes=len(self.body),
            fill=self.fill,
            expected_error_rate=self.expected_error_rate(),
        )

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """Return the share of ``probes`` random digests that the filter reports as present."""
        import numpy as np

        random = np.frombuffer(os.urandom(16 * probes), np.uint64)
        return float(self.contains_digests(random[:probes] >> np.uint64(4), random[probes:]).mean())

    def header(self, tag: int) -> Header:
        """Return the header of this filter as a frame with one shard."""
        return Header(
            kind=self.kind,
            tag=tag,
            capacity=self.capacity,
            error_rate=self.error_rate,
            body_bytes=len(self.body),
            parameters=self.layout.parameters,
            width=self.key_hash.width,
            key_id=self.key_hash.key_id,
        )

    def to_bytes(self) -> bytes:
        """Return the filter as one checksummed frame of :mod:`bloomguard.filters.codec`, without the secret."""
        return codec.encode(self.header(codec.new_tag()), self.body)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes = b"") -> Self:
        """Read a filter from the bytes of :meth:`to_bytes`. Raises :class:`CorruptFilter`, also for another secret."""
        frame = codec.decode(data)
        key_hash = key_hash_of(frame.header, secret)
        if frame.header.shards != 1:
            raise CorruptFilter(f"shard {frame.header.shard} of {frame.header.shards}, not a complete filter")
        return cls.attach(frame.header, memoryview(bytearray(frame.body)), key_hash)

    def dump(self, stream: BinaryIO) -> int:
        """Write the frame to a binary stream without copying it; returns the bytes written."""
        header = self.header(codec.new_tag())
        for piece in (header.pack(), self.body, codec.trailer(header, self.body)):
            stream.write(piece)
        return header.frame_bytes

    def copy(self) -> Self:
        """Return a filter of the same state with its own body on the heap."""
        twin = type(self).__new__(type(self))
        twin._attach(self.layout, self.key_hash, memoryview(bytearray(self.body)), self.shard)
        return twin

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, BodyFilter)
        return self.layout == other.layout and self.key_hash == other.key_hash and self.body == other.body

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.capacity:,} keys at {self.error_rate:g}, {len(self.body):,} bytes>"
