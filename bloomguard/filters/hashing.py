"""Key bytes -> 128-bit digest: one scalar and one vectorised way, bit-identical.

Keys of one fixed width (8 bytes: integers; 16 bytes: UUIDs) are hashed with MurmurHash3_x64_128, the fastest at hand.
A secret is appended to the key, so that nobody outside can work out which bits a key takes. For longer messages that
would not help: MurmurHash3 has pairs of multi-block messages that collide under every seed, so keys of any other
shape are hashed with keyed BLAKE2b (RFC 7693). Python's ``hash()`` differs from process to process and is never used.

The low 60 bits of a digest place the key inside a filter, the high 64 choose the shard.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from mmh3 import mmh3_x64_128_uintdigest

from .errors import InvalidShape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    U64 = NDArray[np.uint64]

#: 60 bits are two digits of a Python integer: the widest digest whose remainders stay cheap.
MASK60 = (1 << 60) - 1
_MASK64 = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_CHUNK = 32_768  # keys: the working set of one chunk stays in the second-level cache


class KeyHash:
    """How the keys of one filter are hashed.

    ``width`` is 8 or 16 for keys of that many bytes, ``None`` for keys of any length. ``secret`` is empty (positions
    are then public knowledge) or 16 to 64 bytes. Raises :class:`InvalidShape` for anything else.
    """

    __slots__ = ("digest", "secret", "width")

    #: ``digest(key: bytes) -> int`` of 128 bits. The width of a fixed-width key is not checked here.
    digest: Callable[[bytes], int]

    def __init__(self, width: int | None = None, secret: bytes = b"") -> None:
        if width not in (None, 8, 16):
            raise InvalidShape(f"width is {width!r}; keys are 8 or 16 bytes wide, or None for any length")
        if secret and not 16 <= len(secret) <= 64:
            raise InvalidShape(f"a secret of {len(secret)} bytes; it has to be empty or of 16 to 64 bytes")
        self.width = width
        self.secret = secret if width is None else secret[:width]
        namespace = self.names()
        self.digest = eval(f"lambda key: {self.expression}", namespace)

    @property
    def key_id(self) -> int:
        """64 bits that tell this secret from another, and give nothing of it away; 0 without a secret."""
        if not self.secret:
            return 0
        return int.from_bytes(blake2b(self.secret, digest_size=8, person=b"bloomguard keyid").digest(), "big")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyHash):
            return NotImplemented
        return self.width == other.width and compare_digest(self.secret, other.secret)

    __hash__ = None  # type: ignore[assignment]

    @property
    def expression(self) -> str:
        """Python source that computes the digest of ``key`` with :meth:`names`; filters inline it in their checks."""
        if self.width is None:
            return 'from_bytes(blake2b(key, digest_size=16, key=secret).digest(), "little")'
        return "murmur(key + secret)" if self.secret else "murmur(key)"

    def names(self) -> dict[str, Any]:
        """The globals that :attr:`expression` refers to."""
        return {
            "murmur": mmh3_x64_128_uintdigest,
            "blake2b": blake2b,
            "from_bytes": int.from_bytes,
            "secret": self.secret,
        }

    def digests(self, keys: Iterable[bytes] | Iterable[int] | bytes | U64 | NDArray[np.int64]) -> tuple[U64, U64]:
        """Digests of many keys as two uint64 arrays of shape ``(n,)``: the low 60 bits, and the high 64.

        ``keys`` is an iterable of ``bytes``; for a fixed width also one buffer of ``n * width`` bytes, and for
        width 8 an integer array or an iterable of integers. Raises :class:`InvalidShape` for anything else.
        """
        import numpy as np

        if self.width is None:
            low, high = self._blake2b(keys)
        else:
            words = self._words(keys)
            low, high = np.empty(len(words), np.uint64), np.empty(len(words), np.uint64)
            for start in range(0, len(words), _CHUNK):
                stop = start + _CHUNK
                low[start:stop], high[start:stop] = _murmur3_x64_128(words[start:stop], self.secret)
        low &= np.uint64(MASK60)
        return low, high

    def words(self, keys: Any) -> U64:
        """Keys of 8 bytes as 64-bit words, shape ``(n,)``."""
        assert self.width == 8
        return self._words(keys)[:, 0]

    def _words(self, keys: Any) -> U64:
        """Fixed-width keys as little-endian 64-bit words, shape ``(n, width // 8)``."""
        import numpy as np

        assert self.width is not None
        if isinstance(keys, np.ndarray):
            if keys.dtype.kind not in "iu" or keys.ndim != 1 or self.width != 8:
                raise InvalidShape(
                    f"an array of {keys.dtype} and shape {keys.shape} for keys of {self.width} bytes; arrays have to "
                    "be one-dimensional and of integers, for keys of 8 bytes"
                )
            return keys.astype(np.int64 if keys.dtype.kind == "i" else np.uint64).view(np.uint64).reshape(-1, 1)
        if not isinstance(keys, (bytes, bytearray, memoryview)):
            keys = list(keys)
            if keys and isinstance(keys[0], int):
                return self._words(_integers(keys))
            wrong = next((key for key in keys if len(key) != self.width), None)
            if wrong is not None:
                raise InvalidShape(f"a key of {len(wrong)} bytes in a filter for keys of {self.width} bytes")
            keys = b"".join(keys)
        keys = memoryview(keys).cast("B")
        if len(keys) % self.width:
            raise InvalidShape(f"a buffer of {len(keys)} bytes is no whole number of keys of {self.width} bytes")
        return np.frombuffer(keys, "<u8").astype(np.uint64, copy=False).reshape(-1, self.width // 8)

    def _blake2b(self, keys: Any) -> tuple[U64, U64]:
        import numpy as np

        if isinstance(keys, (bytes, bytearray, memoryview, np.ndarray)):
            raise InvalidShape(
                "one buffer for keys of any length; pass an iterable of bytes, or give the filter a width"
            )
        secret = self.secret
        digests = b"".join([blake2b(key, digest_size=16, key=secret).digest() for key in keys])
        words = np.frombuffer(digests, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
        return words[:, 0].copy(), words[:, 1].copy()


def _integers(keys: list[Any]) -> NDArray[np.int64]:
    """A list of Python integers as an array; raises :class:`InvalidShape` for what 64 bits with a sign cannot hold."""
    import numpy as np

    try:
        return np.frombuffer(array("q", keys), np.int64)
    except (OverflowError, TypeError) as error:
        raise InvalidShape(f"a list of integers of at most 64 bits with their sign is needed: {error}") from error


def _murmur3_x64_128(words: U64, suffix: bytes) -> tuple[U64, U64]:
    """MurmurHash3_x64_128 with seed 0 of each row of ``words`` followed by ``suffix`` (Appleby, public domain)."""
    import numpy as np

    columns: list[Any] = [words[:, column].copy() for column in range(words.shape[1])]
    columns += [int.from_bytes(suffix[at : at + 8], "little") for at in range(0, len(suffix), 8)]
    h1 = np.zeros(len(words), np.uint64)
    h2 = np.zeros(len(words), np.uint64)
    for first in range(0, len(columns) - 1, 2):
        h1 ^= _mix_k1(columns[first])
        h1 = _rotl(h1, 27)
        h1 += h2
        h1 *= np.uint64(5)
        h1 += np.uint64(0x52DCE729)
        h2 ^= _mix_k2(columns[first + 1])
        h2 = _rotl(h2, 31)
        h2 += h1
        h2 *= np.uint64(5)
        h2 += np.uint64(0x38495AB5)
    if len(columns) % 2:
        h1 ^= _mix_k1(columns[-1])
    length = np.uint64(8 * len(columns))
    h1 ^= length
    h2 ^= length
    h1 += h2
    h2 += h1
    h1, h2 = _fmix(h1), _fmix(h2)
    h1 += h2
    h2 += h1
    return h1, h2


def _mix_k1(k: Any) -> Any:
    return _multiply(_rotl(_multiply(k, _C1), 31), _C2)


def _mix_k2(k: Any) -> Any:
    return _multiply(_rotl(_multiply(k, _C2), 33), _C1)


def _multiply(k: Any, factor: int) -> Any:
    """Product modulo 2**64, of an array or of a plain integer (the secret's words are the same for every key)."""
    if isinstance(k, int):
        return k * factor & _MASK64
    import numpy as np

    return k * np.uint64(factor)


def _rotl(k: Any, bits: int) -> Any:
    if isinstance(k, int):
        return (k << bits | k >> (64 - bits)) & _MASK64
    import numpy as np

    left = k << np.uint64(bits)
    left |= k >> np.uint64(64 - bits)
    return left


def _fmix(k: U64) -> U64:
    import numpy as np

    k ^= k >> np.uint64(33)
    k *= np.uint64(0xFF51AFD7ED558CCD)
    k ^= k >> np.uint64(33)
    k *= np.uint64(0xC4CEB9FE1A85EC53)
    k ^= k >> np.uint64(33)
    return k
