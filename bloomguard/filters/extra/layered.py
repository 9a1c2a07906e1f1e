"""Base class of filters made of several *layers*: filters of one class with one key hash, in one frame.

A layered filter is on the heap of one process. The parameters of its frame depend on the kind; its body is the
concatenation of the layers' frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import bulk, codec
from ..base import BodyFilter, Shape, Stats
from ..errors import CorruptFilter, DiscardUnsupported, InvalidShape
from ..hashing import KeyHash
from ..serial import Serial, key_hash_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..base import U64, Keys

MAX_LAYERS = 64


class LayeredFilter(Serial):
    """Several filters of one class; a key is in the layered filter if it is in any layer."""

    supports_discard: ClassVar[bool] = False
    layer_class: ClassVar[type[BodyFilter]]

    __slots__ = ("capacity", "error_rate", "key_hash", "layers")

    capacity: int
    error_rate: float
    key_hash: KeyHash
    layers: list[Any]

    def _parameters(self) -> tuple[int, ...]:
        """Return the parameters for the frame's header."""
        raise NotImplementedError

    def _restore(self, parameters: Sequence[int]) -> None:
        """Set the attributes from the parameters of a frame, after its layers. Raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _layer(self, shape: Shape) -> Any:
        """Return a new, empty layer of this shape for the same keys."""
        layer = self.layer_class.__new__(self.layer_class)
        layer._allocate(shape, self.key_hash, None)
        return layer

    def add_digests(self, low: U64, high: U64) -> None:
        """Add many digests: their low 60 bits and their high 64, of shape ``(n,)``."""
        raise NotImplementedError

    def might_contain(self, key: bytes) -> bool:
        """Return whether ``key`` is in: ``False`` is certain, ``True`` is wrong at the error rate at most."""
        digest = self.key_hash.digest(key)
        for layer in self.layers:  # noqa: SIM110 - any() with a generator takes twice the time
            if layer.might_contain_digest(digest):
                return True
        return False

    def __contains__(self, key: bytes) -> bool:
        return self.might_contain(key)

    def add_many(self, keys: Keys) -> None:
        """Add many keys: an iterable of ``bytes``, or any other form that :meth:`KeyHash.digests` takes."""
        size = bulk.batch_size(sum(len(layer.body) for layer in self.layers))
        for batch in bulk.batches(self.key_hash.width, keys, size):
            self.add_digests(*self.key_hash.digests(batch))

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; returns a boolean array of shape ``(n,)``."""
        return self.contains_digests(*self.key_hash.digests(keys))

    def contains_digests(self, low: U64, high: U64) -> NDArray[np.bool_]:
        """Check many digests; returns a boolean array of shape ``(n,)``."""
        import numpy as np

        found = np.zeros(len(low), bool)
        for layer in self.layers:
            found |= layer.contains_digests(low, high)
        return found

    def discard(self, key: bytes) -> bool:
        """Raise :class:`DiscardUnsupported`: this kind cannot remove keys."""
        raise DiscardUnsupported(
            f"a {self.kind} filter cannot discard; check supports_discard, or choose a cuckoo filter"
        )

    def stats(self) -> Stats:
        """Return the combined statistics of all layers."""
        each = [layer.stats() for layer in self.layers]
        room = sum(stats.bytes for stats in each)
        absent = 1.0
        for stats in each:
            absent *= 1 - stats.expected_error_rate
        return Stats(
            kind=self.kind,
            capacity=self.capacity,
            error_rate=self.error_rate,
            size=sum(stats.size for stats in each),
            bytes=room,
            fill=sum(stats.fill * stats.bytes for stats in each) / room if room else 0.0,
            expected_error_rate=1 - absent,
        )

    def to_bytes(self) -> bytes:
        """Return the filter as one checksummed frame that contains its layers' frames, without the secret."""
        body = b"".join([layer.to_bytes() for layer in self.layers])
        header = codec.Header(
            kind=self.kind,
            tag=codec.new_tag(),
            capacity=self.capacity,
            error_rate=self.error_rate,
            body_bytes=len(body),
            parameters=self._parameters(),
            width=self.key_hash.width,
            key_id=self.key_hash.key_id,
        )
        return codec.encode(header, body)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes = b"") -> Self:
        """Read a filter from the bytes of :meth:`to_bytes`. Raises :class:`CorruptFilter`, also for another secret."""
        frame = codec.decode(data)
        header = frame.header
        if header.kind != cls.kind or header.shards != 1:
            raise CorruptFilter(f"a {header.kind} filter in {header.shards} shards; a {cls.kind} filter is expected")
        self = cls.__new__(cls)
        self.capacity, self.error_rate = header.capacity, header.error_rate
        self.key_hash = key_hash_of(header, secret)
        self.layers = []
        rest = frame.body
        while len(rest):
            size = codec.Header.unpack(rest).frame_bytes
            layer = cls.layer_class.from_bytes(rest[:size], secret)
            if len(self.layers) == MAX_LAYERS or layer.key_hash != self.key_hash:
                raise CorruptFilter(f"layer {len(self.layers)} does not belong to this filter")
            self.layers.append(layer)
            rest = rest[size:]
        try:
            self._restore(header.parameters)
        except (InvalidShape, OverflowError, ZeroDivisionError) as error:
            raise CorruptFilter(f"parameters {header.parameters} of a {cls.kind} filter: {error}") from error
        return self

    def copy(self) -> Self:
        """Return a filter of the same state with its own memory."""
        twin = type(self).__new__(type(self))
        twin.capacity, twin.error_rate, twin.key_hash = self.capacity, self.error_rate, self.key_hash
        twin.layers = [layer.copy() for layer in self.layers]
        twin._restore(self._parameters())
        return twin

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, LayeredFilter)
        return (
            self.layers == other.layers
            and self._parameters() == other._parameters()
            and (self.capacity, self.error_rate) == (other.capacity, other.error_rate)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.layers)} layers at {self.error_rate:g}>"


def pack_float(value: float) -> int:
    """Return a float as a 64-bit integer, for a parameter of a frame."""
    return int.from_bytes(struct.pack(">d", value), "big")


def unpack_float(bits: int) -> float:
    """Return the float of a 64-bit integer made by :func:`pack_float`."""
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value
