"""Base classes: of every filter, of its *shape*, and of filters whose whole state is one *body*.

A body is a block of memory: on the heap, in a mapped file, or fetched from a server. Readers need no lock. A writer
takes a lock, gets the changes from :meth:`BodyFilter.writes` and applies them in order.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from ..exceptions import CorruptFilter, DiscardUnsupported, InvalidShape, TooLarge
from . import bulk, codec, sizing
from .bulk import np
from .codec import Header
from .hashing import KeyHash, compile_function

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .bulk import I64, U64

    Keys = Iterable[bytes] | Iterable[int] | bytes | U64 | I64
    #: The keys of written rows: one by one, or, if all are integers, in an array.
    RowKeys = Sequence[bytes] | I64
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


@dataclass(frozen=True)
class Shape:
    """The layout of a body: which bits, counters or slots lie where."""

    capacity: int
    error_rate: float

    @property
    def body_bytes(self) -> int:
        """The size of the body in bytes."""
        raise NotImplementedError

    @property
    def parameters(self) -> tuple[int, ...]:
        """Integers that the header stores to describe the shape; each kind defines their order."""
        raise NotImplementedError


class Filter:
    """The interface of every filter. Check ``supports_discard``, not the class, before you call :meth:`discard`.

    Up to ``capacity`` keys the false-positive rate stays at ``error_rate``. ``might_contain(key: bytes) -> bool`` is
    what ``in`` calls: ``False`` is certain, ``True`` is wrong at the error rate at most.
    """

    kind: ClassVar[str]
    supports_discard: ClassVar[bool] = False

    capacity: int
    error_rate: float
    key_hash: KeyHash
    might_contain: Callable[[bytes], bool]

    # Subclasses define these.

    def add(self, key: bytes) -> None:
        """Add ``key``. Raises :class:`FilterFull` if a scalable filter has all its layers."""
        raise NotImplementedError

    def add_digests(self, low: U64, high: U64 | None = None) -> None:
        """Add many digests: their low 60 bits and, for the kinds that use them, their high 64; shape ``(n,)``."""
        raise NotImplementedError

    def contains_digests(self, low: U64, high: U64 | None = None) -> NDArray[np.bool_]:
        """Check many digests; returns a boolean array of shape ``(n,)``."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove all keys."""
        raise NotImplementedError

    def stats(self) -> Stats:
        """Return size, fill and expected error rate."""
        raise NotImplementedError

    def _content(self) -> tuple[tuple[int, ...], bytes | memoryview]:
        """Return the parameters and the body of the frame."""
        raise NotImplementedError

    @classmethod
    def _restored(cls, header: Header, body: memoryview, key_hash: KeyHash, secret: bytes) -> Self:
        """Return the filter that a frame contains. Raises :class:`CorruptFilter`."""
        raise NotImplementedError

    # The rest is the same for all kinds.

    def __contains__(self, key: bytes) -> bool:
        return self.might_contain(key)

    def discard(self, key: bytes) -> bool:
        """Undo one add of ``key``; returns whether it was found. Raises :class:`DiscardUnsupported`."""
        raise DiscardUnsupported(
            f"a {self.kind} filter cannot discard; check supports_discard, or choose a cuckoo filter"
        )

    def digests(self, keys: Keys) -> tuple[U64, U64 | None]:
        """Return the arguments of :meth:`add_digests` for many keys."""
        return self.key_hash.digests(keys)

    def add_many(self, keys: Keys) -> None:
        """Add many keys: an iterable of ``bytes``, or any other form that :meth:`KeyHash.digests` takes.

        Raises :class:`InvalidShape` for other forms.
        """
        for batch in bulk.batches(self.key_hash.width, keys, self.capacity):
            self.add_digests(*self.digests(batch))

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; returns a boolean array of shape ``(n,)``. Raises :class:`InvalidShape` as ``add_many``."""
        return self.contains_digests(*self.digests(keys))

    def _frame(self) -> tuple[bytes, bytes | memoryview, bytes]:
        parameters, body = self._content()
        header = Header(
            kind=self.kind,
            tag=codec.new_tag(),
            capacity=self.capacity,
            error_rate=self.error_rate,
            body_bytes=len(body),
            parameters=parameters,
            width=self.key_hash.width,
            key_id=self.key_hash.key_id,
        )
        return header.pack(), body, codec.trailer(header, body)

    def to_bytes(self) -> bytes:
        """Return the filter as one checksummed frame of :mod:`bloomguard.filters.codec`, without the secret."""
        return b"".join(self._frame())

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes = b"") -> Self:
        """Read a filter from the bytes of :meth:`to_bytes`. Raises :class:`CorruptFilter`, also for another secret."""
        frame = codec.decode(data)
        header = frame.header
        if header.kind != cls.kind or header.shards != 1:
            raise CorruptFilter(f"a {header.kind} filter in {header.shards} shards; a {cls.kind} filter is expected")
        try:
            key_hash = KeyHash(header.width, secret)
        except InvalidShape as error:
            raise CorruptFilter(str(error)) from error
        if key_hash.key_id != header.key_id:
            raise CorruptFilter(
                f"built with another secret: its key id is {header.key_id:#x}, not {key_hash.key_id:#x}"
            )
        return cls._restored(header, frame.body, key_hash, secret)

    def dump(self, stream: BinaryIO) -> int:
        """Write the frame to a binary stream; returns the bytes written."""
        pieces = self._frame()
        for piece in pieces:
            stream.write(piece)  # may return nothing, as an HttpResponse does
        return sum(map(len, pieces))

    @classmethod
    def load(cls, stream: BinaryIO, secret: bytes = b"", max_bytes: int | None = None) -> Self:
        """Read one frame from a binary stream in pieces. Raises :class:`CorruptFilter`, :class:`TooLarge`."""
        return cls.from_bytes(codec.read(stream, sizing.memory_bytes() if max_bytes is None else max_bytes), secret)

    def _json_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "capacity", "error_rate")}

    def to_json(self) -> str:
        """Return the frame in base 64, with kind, capacity and error rate as readable fields."""
        return json.dumps(self._json_fields() | {"frame": base64.b64encode(self.to_bytes()).decode()})

    @classmethod
    def from_json(cls, text: str | bytes, secret: bytes = b"") -> Self:
        """Read a filter from the text of :meth:`to_json`. Raises :class:`CorruptFilter`."""
        try:
            fields = dict(json.loads(text))
            frame = base64.b64decode(fields.pop("frame"), validate=True)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptFilter(f"not the JSON form of a filter: {error!r}") from error
        self = cls.from_bytes(frame, secret)
        if fields != self._json_fields():
            raise CorruptFilter(f"the JSON fields are {fields}, but the frame has {self._json_fields()}")
        return self


class BodyFilter(Filter):
    """A filter whose whole state is ``body``. Subclasses look up, add and discard digests."""

    #: True if a key is in the filter exactly when all bits of ``layout.positions(digest)`` are set, so that a server
    #: with bit commands can check and add keys itself.
    plain_bits: ClassVar[bool] = False

    layout: Any  # a Shape of the kind
    body: memoryview
    #: ``digest(key: bytes) -> int``: the argument of :meth:`writes` and :attr:`might_contain_digest`.
    digest: Callable[[bytes], int]
    #: The same check as ``might_contain`` for a digest.
    might_contain_digest: Callable[[int], bool]
    #: ``growing(capacity, error_rate, **options)``: the shape of a shard in a store, which may get more keys.
    growing: ClassVar[Callable[..., Shape]]

    # Subclasses define these.

    @classmethod
    def plan(
        cls, capacity: int, error_rate: float, *, shard_bytes: int = sizing.MAX_BITS, **options: Any
    ) -> tuple[Shape, int]:
        """Return the shape of one shard of about ``shard_bytes`` and the number of shards; allocates nothing."""
        whole = cls.growing(capacity, error_rate, **options)
        shards = -(-whole.body_bytes // shard_bytes)
        if shards > 1:
            whole = cls.growing(sizing.fullest_shard(capacity, shards), error_rate, **options)
        return whole, shards

    @classmethod
    def shape_of(cls, header: Header) -> Shape:
        """Return the shape that a header describes. Raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _ready(self) -> None:
        """Set ``might_contain`` and ``might_contain_digest`` for the attached body, and ``digest`` if it is another."""
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
    def locator(cls, first: Any, shards: int, key_hash: KeyHash) -> Callable[[bytes], tuple[int, int]]:
        """Return ``locate(key) -> (shard, digest)`` for a build whose first shard has the shape ``first``."""
        shard = f"(d >> 64) % {shards}" if shards > 1 else "0"
        return compile_function("key", key_hash.names(), f"d = {key_hash.expression}", f"return {shard}, d")

    @classmethod
    def locate_many(cls, first: Any, shards: int, key_hash: KeyHash, keys: Keys) -> tuple[U64, U64, U64]:
        """Return the shard, and the low and high part of the digest, of each key; all of shape ``(n,)``."""
        low, high = key_hash.digests(keys)
        return high % np.uint64(shards), low, high

    @classmethod
    def checker(cls, key_hash: KeyHash, filters: list[Any]) -> Callable[[bytes], bool]:
        """Return one ``might_contain(key)`` for all shards, given in order."""
        names = key_hash.names() | {"checks": [each.might_contain_digest for each in filters]}
        return compile_function(
            "key", names, f"d = {key_hash.expression}", f"return checks[(d >> 64) % {len(filters)}](d)"
        )

    # The rest is the same for all kinds.

    def _allocate(self, shape: Shape, key_hash: KeyHash, max_bytes: int | None = None) -> Self:
        limit = sizing.memory_bytes() if max_bytes is None else max_bytes
        if shape.body_bytes > limit:
            raise TooLarge(
                f"{shape.capacity:,} keys at {shape.error_rate:.3g} take {shape.body_bytes:,} bytes as a {self.kind} "
                f"filter, over the limit of {limit:,}; lower the capacity or raise error_rate or max_bytes"
            )
        return self._attach(shape, key_hash, memoryview(bytearray(shape.body_bytes)))

    def _attach(self, shape: Shape, key_hash: KeyHash, body: memoryview) -> Self:
        self.layout, self.key_hash, self.body = shape, key_hash, body
        self.capacity, self.error_rate, self.digest = shape.capacity, shape.error_rate, key_hash.digest
        self._ready()
        return self

    @classmethod
    def trusted_shape(cls, header: Header, key_hash: KeyHash) -> Shape:
        """Check all values of a header of this kind and return its shape. Raises :class:`CorruptFilter`."""
        try:
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
        """Return the filter over a frame's ``body``, which is shared, not copied. Raises :class:`CorruptFilter`."""
        return cls.__new__(cls)._attach(cls.trusted_shape(header, key_hash), key_hash, body)

    def writes(self, digest: int) -> Writes:
        """Return the changes that add ``digest``, ``(offset, bytes)`` in order; does not apply them."""
        changes = []  # of plain bits, whose positions lie in distinct bytes
        for position in self.layout.positions(digest):
            offset, bit = position >> 3, 128 >> (position & 7)
            old = self.body[offset]
            if not old & bit:
                changes.append((offset, bytes((old | bit,))))
        return changes

    def add(self, key: bytes) -> None:
        self._apply(self.writes(self.digest(key)))

    def _apply(self, writes: Writes) -> None:
        body = self.body
        for offset, data in writes:
            body[offset : offset + len(data)] = data

    def clear(self) -> None:
        np.frombuffer(self.body, np.uint8)[:] = 0

    def stats(self) -> Stats:
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
        random = np.frombuffer(os.urandom(16 * probes), np.uint64)
        return float(self.contains_digests(random[:probes] >> np.uint64(4), random[probes:]).mean())

    def _content(self) -> tuple[tuple[int, ...], memoryview]:
        return self.layout.parameters, self.body

    @classmethod
    def _restored(cls, header: Header, body: memoryview, key_hash: KeyHash, secret: bytes) -> Self:
        return cls.attach(header, memoryview(bytearray(body)), key_hash)

    def copy(self) -> Self:
        """Return a filter of the same state with its own body on the heap."""
        return type(self).__new__(type(self))._attach(self.layout, self.key_hash, memoryview(bytearray(self.body)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.layout == other.layout and self.key_hash == other.key_hash and self.body == other.body

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.capacity:,} keys at {self.error_rate:g}, {len(self.body):,} bytes>"
