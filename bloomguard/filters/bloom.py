"""Bloom filter in one-hash partitions.

``k`` partitions whose sizes are distinct primes, byte-aligned one behind the other; a key's bit in partition ``i`` is
the remainder of its 60-bit digest by that prime (Lu et al. 2015, "One-Hashing Bloom Filter"). One hash a key, one
remainder and one index a probe, and the false-positive rate of the textbook filter. Bits are numbered from the high
end of each byte, as bitarray, ``numpy.packbits`` and Redis' bit commands number them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bitarray import bitarray

from . import codec, sizing
from .errors import CorruptFilter, InvalidShape, TooLarge
from .hashing import MASK60, KeyHash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]
    Keys = Iterable[bytes] | bytes | U64 | NDArray[np.int64]

_CHUNK = 1 << 18  # digests placed at once: their positions stay in the cache


@dataclass(frozen=True)
class BloomShape:
    """Where the bits of a filter lie: ``sizes`` are its partitions in bits, distinct and ascending."""

    capacity: int
    error_rate: float
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) > sizing.MAX_HASHES or len(set(self.sizes)) != len(self.sizes):
            raise InvalidShape(f"partitions of {self.sizes!r} bits; 1 to {sizing.MAX_HASHES} distinct sizes are needed")
        if min(self.sizes) < 2 or sum(self.sizes) > 2 * sizing.MAX_BITS:
            raise InvalidShape(f"partitions of {self.sizes!r} bits; each has to be of 2 bits or more, 2**49 in all")

    @property
    def bits(self) -> int:
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each partition."""
        offsets, at = [], 0
        for size in self.sizes:
            offsets.append(at)
            at += -(-size // 8)
        return tuple(offsets)

    @property
    def body_bytes(self) -> int:
        """Bytes of all partitions, padded to a multiple of 8."""
        return -(-sum(-(-size // 8) for size in self.sizes) // 8) * 8

    def positions(self, digest: int) -> list[int]:
        """The bit positions, from the body's first bit, that the low 60 bits of ``digest`` take."""
        low = digest & MASK60
        return [8 * offset + low % size for offset, size in zip(self.offsets, self.sizes)]


class BloomFilter:
    """A set of byte strings that never denies a member and rarely admits a stranger.

    ``capacity`` keys fit in while the false-positive rate stays at ``error_rate``. ``hashes`` is chosen for few probes
    at little more than the least memory unless given. ``width`` (8 or 16) is for keys that all have that many bytes,
    such as integers and UUIDs, and makes them several times faster; ``secret`` (16 to 64 bytes) keeps outsiders from
    crafting keys that collide. Raises :class:`InvalidShape` for values out of range and :class:`TooLarge` for more
    than ``max_bytes``, before anything is allocated.

    >>> f = BloomFilter(1_000, 0.01)
    >>> f.add(b"paris")
    >>> f.might_contain(b"paris"), f.might_contain(b"atlantis")
    (True, False)
    """

    kind: ClassVar[str] = "bloom"
    supports_discard: ClassVar[bool] = False

    __slots__ = ("layout", "key_hash", "body", "might_contain", "might_contain_digest", "_partitions", "__weakref__")

    #: ``might_contain(key: bytes) -> bool``: ``False`` is certain, ``True`` is wrong at most at the error rate.
    might_contain: Callable[[bytes], bool]
    #: The same for a digest of the filter's own ``key_hash``.
    might_contain_digest: Callable[[int], bool]

    def __init__(
        self,
        capacity: int,
        error_rate: float = 0.01,
        *,
        hashes: int | None = None,
        width: int | None = None,
        secret: bytes = b"",
        max_bytes: int = 1 << 40,
    ) -> None:
        shape = self.shape(capacity, error_rate, hashes)
        if shape.body_bytes > max_bytes:
            raise TooLarge(
                f"{capacity:,} keys at {error_rate:.3g} take {shape.body_bytes:,} bytes, over max_bytes={max_bytes:,}"
            )
        self._attach(shape, KeyHash(width, secret), memoryview(bytearray(shape.body_bytes)))

    @staticmethod
    def shape(capacity: int, error_rate: float, hashes: int | None = None) -> BloomShape:
        """The shape for ``capacity`` keys at ``error_rate``; allocates nothing. Raises :class:`InvalidShape`."""
        if hashes is None:
            hashes = sizing.economical_hashes(error_rate)
        sizes = sizing.partition_sizes(sizing.bits_with_hashes(capacity, error_rate, hashes), hashes)
        return BloomShape(capacity, float(error_rate), sizes)

    @classmethod
    def attach(cls, header: codec.Header, body: memoryview, key_hash: KeyHash) -> BloomFilter:
        """The filter whose bits are ``body``, which is shared, not copied. Raises :class:`CorruptFilter`."""
        try:
            shape = BloomShape(header.capacity, header.error_rate, header.parameters)
        except InvalidShape as error:
            raise CorruptFilter(str(error)) from error
        if header.kind != cls.kind or shape.body_bytes != len(body) or header.width != key_hash.width:
            raise CorruptFilter(
                f"a {header.kind} filter of {len(body)} bytes and width {header.width}; "
                f"its parameters ask for {shape.body_bytes} bytes and width {key_hash.width}"
            )
        self = cls.__new__(cls)
        self._attach(shape, key_hash, body)
        return self

    def _attach(self, shape: BloomShape, key_hash: KeyHash, body: memoryview) -> None:
        self.layout = shape
        self.key_hash = key_hash
        self.body = body
        self._partitions = tuple(
            bitarray(buffer=body[offset : offset + -(-size // 8)], endian="big")
            for offset, size in zip(shape.offsets, shape.sizes)
        )
        self.might_contain = self._compile("key", f"{key_hash.expression} & {MASK60}")
        self.might_contain_digest = self._compile("digest", f"digest & {MASK60}")

    def _compile(self, argument: str, digest: str) -> Callable[[Any], bool]:
        """A check unrolled over the partitions: half the time of a loop, and it stops at the first clear bit."""
        probes = " and ".join(f"b{i}[h % {size}]" for i, size in enumerate(self.layout.sizes))
        names = {f"b{i}": bits for i, bits in enumerate(self._partitions)} | self.key_hash.names()
        source = (  # a closure's names are found without a look-up in a dictionary
            f"def make({', '.join(names)}):\n"
            f" def check({argument}):\n"
            f"  h = {digest}\n"
            f"  return True if {probes} else False\n"
            " return check"
        )
        namespace: dict[str, Any] = {}
        exec(source, namespace)
        check: Callable[[Any], bool] = namespace["make"](**names)
        return check

    @property
    def capacity(self) -> int:
        """Keys that keep the false-positive rate at :attr:`error_rate`."""
        return self.layout.capacity

    @property
    def error_rate(self) -> float:
        """The false-positive rate at :attr:`capacity` keys."""
        return self.layout.error_rate

    def __contains__(self, key: bytes) -> bool:
        return self.might_contain(key)

    def add(self, key: bytes) -> None:
        """Put ``key`` in."""
        low = self.key_hash.digest(key) & MASK60
        for bits, size in zip(self._partitions, self.layout.sizes):
            bits[low % size] = 1

    def writes(self, digest: int) -> list[tuple[int, bytes]]:
        """The bytes of the body, as ``(offset, bytes)``, that adding ``digest`` changes; nothing is changed here."""
        body, changes = self.body, []
        for position in self.layout.positions(digest):
            offset, bit = position >> 3, 128 >> (position & 7)
            old = body[offset]
            if not old & bit:
                changes.append((offset, bytes((old | bit,))))
        return changes

    def add_many(self, keys: Keys) -> None:
        """Put many keys in: an iterable of ``bytes``, or what :meth:`KeyHash.digests` takes."""
        self.add_digests(self.key_hash.digests(keys)[0])

    def add_digests(self, low: U64) -> None:
        """Put in the keys whose low 60 digest bits are given, shape ``(n,)``.

        A partition at a time: the most memory beside the filter is one byte for each bit of one partition.
        """
        import numpy as np

        body = np.frombuffer(self.body, np.uint8)
        for offset, size in zip(self.layout.offsets, self.layout.sizes):
            part = body[offset : offset + -(-size // 8)]
            if len(low) * 64 < size:  # few keys in a large partition: touch only their bytes
                positions = np.unique(low % np.uint64(size)).astype(np.int64)
                np.bitwise_or.at(part, positions >> 3, (128 >> (positions & 7)).astype(np.uint8))
                continue
            flags = np.zeros(8 * len(part), bool)
            for start in range(0, len(low), _CHUNK):
                flags[(low[start : start + _CHUNK] % np.uint64(size)).view(np.int64)] = True
            part |= np.packbits(flags)

    def contains_many(self, keys: Keys) -> NDArray[np.bool_]:
        """Check many keys; a boolean array of shape ``(n,)``."""
        return self.contains_digests(self.key_hash.digests(keys)[0])

    def contains_digests(self, low: U64) -> NDArray[np.bool_]:
        """Check many digests (their low 60 bits, shape ``(n,)``); a boolean array of shape ``(n,)``."""
        import numpy as np

        body = np.frombuffer(self.body, np.uint8)
        found = np.ones(len(low), bool)
        for offset, size in zip(self.layout.offsets, self.layout.sizes):
            positions = (low % np.uint64(size)).view(np.int64)
            shifts = (7 - (positions & 7)).astype(np.uint8)
            found &= (body[offset + (positions >> 3)] >> shifts & 1).astype(bool)
        return found

    @property
    def fill(self) -> float:
        """Share of the bits that are set, 0 to 1."""
        return sum(bits.count() for bits in self._partitions) / self.layout.bits

    def approximate_size(self) -> int:
        """Distinct keys estimated from the fill (Swamidass and Baldi 2007), the mean over the partitions."""
        estimates = []
        for bits, size in zip(self._partitions, self.layout.sizes):
            clear = max(size - bits.count(), 0.5)  # a full partition has no logarithm; half a bit is its best guess
            estimates.append(math.log(clear / size) / math.log1p(-1 / size))
        return round(sum(estimates) / len(estimates))

    def expected_error_rate(self) -> float:
        """The false-positive rate that the present fill gives: the product of the partitions' fills."""
        return math.prod(bits.count() / size for bits, size in zip(self._partitions, self.layout.sizes))

    def measure_error_rate(self, probes: int = 100_000) -> float:
        """The share of ``probes`` random digests, none of them added on purpose, that the filter lets through."""
        import numpy as np

        random = np.frombuffer(os.urandom(8 * probes), np.uint64) & np.uint64(MASK60)
        return float(self.contains_digests(random).mean())
