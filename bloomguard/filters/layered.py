"""What filters made of several others share: one key hash, one answer, one frame that holds the frames of all.

A layered filter lives on the heap of one process. Its frame has the kind's own figures as parameters; its body is the
layers' frames, one behind the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from . import bulk, codec
from .base import BodyFilter, Shape, Stats
from .errors import CorruptFilter, DiscardUnsupported, InvalidShape
from .hashing import KeyHash
from .serial import Serial, key_hash_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .base import U64, Keys

MAX_LAYERS = 64


class LayeredFilter(Serial):
    """Filters of one class behind one interface; a key is in if it is in any of them."""

    supports_discard: ClassVar[bool] = False
    layer_class: ClassVar[type[BodyFilter]]

    __slots__ = ("capacity", "error_rate", "key_hash", "layers")

    capacity: int
    error_rate: float
    key_hash: KeyHash
    layers: list[Any]

    def _parameters(self) -> tuple[int, ...]:
        """What the frame tells beside the layers."""
        raise NotImplementedError

    def _restore(self, parameters: Sequence[int]) -> None:
        """Take the parameters of a frame whose layers are in place; raises :class:`InvalidShape`."""
        raise NotImplementedError

    def _layer(self, shape: Shape) -> Any:
        """A new, empty layer of this shape for the same keys."""
        layer = self.layer_class.__new__(self.layer_class)
        layer._allocate(shape, self.key_hash, None)
        return layer

    def add_digests(self, low: U64, high: U64) -> None:
        """Put many digests in: their low 60 bits and their high 64, of shape ``(n,)``."""
        raise NotImplementedError

    def might_contain(self, key: bytes) -> bool:
        """``False`` is certain, ``True`` is wrong at most at the error rate."""
        digest = self.key_hash.digest(key)
        for layer in self.layers:  # noqa: SIM110 - any() with a generator takes twice the time
            if layer.might_contain_digest(digest):
                return True
        return False

    def __contains__(self, key: bytes) -> bool:
        return self.might_contain(key)

    def add_many(self, keys: Keys) -> None:
        """Put many keys in: an iterable of ``bytes``, or what :meth:`KeyHash.digests` takes."""
        size = bulk.batch_size(sum(len(layer.body) for layer in self.layers))
        for batch in bulk.batches(self.key_hash.width, keys, size):
            self.add_digests(*self.key_hash.digests(batch))

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; a boolean array of shape ``(n,)``."""
        return self.contains_digests(*self.key_hash.digests(keys))

    def contains_digests(self, low: U64, high: U64) -> NDArray[np.bool_]:
        """Check many digests; a boolean array of shape ``(n,)``."""
        import numpy as np

        found = np.zeros(len(low), bool)
        for layer in self.layers:
            found |= layer.contains_digests(low, high)
        return found

    def discard(self, key: bytes) -> bool:
        """Never possible: raises :class:`DiscardUnsupported`."""
        raise DiscardUnsupported(
            f"a {self.kind} filter cannot discard; ask supports_discard, or choose a cuckoo filter"
        )

    def stats(self) -> Stats:
        """The layers' figures taken together."""
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
        """The filter as one checksummed frame that holds its layers' frames; the secret is not in it."""
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
        """The filter of :meth:`to_bytes`, copied. Raises :class:`CorruptFilter`, also for another secret."""
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

    def _figures(self) -> dict[str, Any]:
        return {"kind": self.kind, "capacity": self.capacity, "error_rate": self.error_rate}

    def copy(self) -> Self:
        """A filter of the same state with memory of its own."""
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
    """A float as the 64 bits that a frame's parameter holds."""
    return int.from_bytes(struct.pack(">d", value), "big")


def unpack_float(bits: int) -> float:
    """The number whose 64 bits these are; the other way of :func:`pack_float`."""
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value
