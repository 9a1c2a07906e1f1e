"""Hash keys to digests of 128 bits: one scalar and one vectorised implementation with identical results.

Keys of a fixed width (8 bytes: integers; 16 bytes: UUIDs) are hashed with MurmurHash3_x64_128, the fastest hash
available. A secret is appended to the key, so that nobody without the secret can compute the bits of a key. (A seed,
and a XOR of the digest, would be cheaper but insecure: equal digests stay equal under the XOR, and the seed has only 32
bits.)

Keys of any other length are hashed with BLAKE2b of the secret and the key, because MurmurHash3 has pairs of multi-block
messages that collide under every seed. Unlike SHA-2, BLAKE2b needs no second pass to be a MAC (Luykx, Mennink and Neves
2016, "Security Analysis of BLAKE2's Modes of Operation"). Secret and slug share one block; the keyed mode of RFC 7693
would spend a block on the secret. MurmurHash3 then converts BLAKE2b's 16 bytes to an integer: the fastest way, and
without loss, since it permutes 16-byte inputs. Python's ``hash()`` is not used: it differs from process to process.

The low 60 bits of a digest place the key in a filter, the high 64 bits choose the shard.

:func:`compile_function` compiles the checks of the filters, which inline :attr:`KeyHash.expression`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from mmh3 import mmh3_x64_128_uintdigest

from ..exceptions import InvalidShape
from .bulk import np, spread

if TYPE_CHECKING:
    from .bulk import I64, U64

#: 60 bits are two digits of a Python integer: the widest digest whose remainders are cheap.
MASK60 = (1 << 60) - 1
_MASK64 = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
#: MurmurHash3's constants for the first and the second word of a block.
_HALVES = (_C1, _C2, 31, 27, 0x52DCE729), (_C2, _C1, 33, 31, 0x38495AB5)
_CHUNK = 1 << 14  # keys: the arrays of one chunk stay in the second-level cache
_SHARED = 100_000  # from this many keys on, use several threads


class KeyHash:
    """The hash function of one filter's keys.

    ``width`` is 8 or 16 for keys of that many bytes, ``None`` for keys of any length. ``secret`` is empty (anybody can
    then compute the positions of a key) or has 16 to 64 bytes. Raises :class:`InvalidShape` for other values.
    """

    __slots__ = ("digest", "secret", "width")

    #: ``digest(key: bytes) -> int`` of 128 bits. It does not check the width of a key.
    digest: Callable[[bytes], int]

    def __init__(self, width: int | None = None, secret: bytes = b"") -> None:
        if width not in (None, 8, 16):
            raise InvalidShape(f"width is {width!r}; keys are 8 or 16 bytes wide, or None for any length")
        if secret and not 16 <= len(secret) <= 64:
            raise InvalidShape(f"a secret of {len(secret)} bytes; it has to be empty or of 16 to 64 bytes")
        self.width = width
        self.secret = secret if width is None else secret[:width]
        self.digest = compile_function("key", self.names(), f"return {self.expression}")

    @property
    def key_id(self) -> int:
        """64 bits that identify the secret without revealing it; 0 without a secret."""
        if not self.secret:
            return 0
        return int.from_bytes(blake2b(self.secret, digest_size=8, person=b"bloomguard keyid").digest(), "big")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyHash):
            return NotImplemented
        return self.width == other.width and compare_digest(self.secret, other.secret)

    @property
    def expression(self) -> str:
        """Python source that computes the digest of ``key`` from :meth:`names`; filters inline it in their checks."""
        if self.width is None:
            # Copying a hash that has read the secret takes a fifth less time than a new one; update() returns None.
            return "murmur((c := fresh()).update(key) or c.digest())"
        return "murmur(key + secret)" if self.secret else "murmur(key)"

    def names(self) -> dict[str, Any]:
        """Return the globals that :attr:`expression` refers to."""
        return {
            "murmur": mmh3_x64_128_uintdigest,
            "fresh": blake2b(self.secret, digest_size=16).copy,
            "secret": self.secret,
        }

    def digests(self, keys: Iterable[bytes] | Iterable[int] | bytes | U64 | I64) -> tuple[U64, U64]:
        """Return the digests of many keys as two uint64 arrays of shape ``(n,)``: the low 60 bits, and the high 64.

        ``keys`` is an iterable of ``bytes``; for a fixed width also one buffer of ``n * width`` bytes, and for width 8
        also an integer array or an iterable of integers. Raises :class:`InvalidShape` for other forms.
        """
        low, high = self.parts(keys, both=True)
        assert high is not None
        return low, high

    def parts(self, keys: Any, *, both: bool) -> tuple[U64, U64 | None]:
        """Return both parts of the digests, or only the low 60 bits: enough for a Bloom filter, in half the memory."""
        words, suffix = (self._blake2b(keys), b"") if self.width is None else (self.words(keys), self.secret)
        low = np.empty(len(words), np.uint64)
        wide = np.empty(len(words), np.uint64) if both else None

        def worker(starts: range) -> None:
            scratch = np.empty((4, min(_CHUNK, len(words))), np.uint64)
            for start in starts:
                block = slice(start, start + _CHUNK)
                h1, h2 = _murmur3_x64_128(words[block], suffix, scratch)
                np.bitwise_and(h1, np.uint64(MASK60), out=low[block])
                if wide is not None:
                    wide[block] = h2

        spread(worker, range(0, len(words), _CHUNK), shared=len(words) >= _SHARED)
        return low, wide

    def words(self, keys: Any) -> U64:
        """Return fixed-width keys as little-endian 64-bit words, shape ``(n, width // 8)``."""
        assert self.width is not None
        if isinstance(keys, np.ndarray):
            if keys.dtype.kind not in "iu" or keys.ndim != 1 or self.width != 8:
                raise InvalidShape(
                    f"an array of {keys.dtype} and shape {keys.shape} for keys of {self.width} bytes; arrays have to "
                    "be one-dimensional and of integers, for keys of 8 bytes"
                )
            wide = np.ascontiguousarray(keys, np.int64 if keys.dtype.kind == "i" else np.uint64)
            return wide.view(np.uint64).reshape(-1, 1)
        if not isinstance(keys, (bytes, bytearray, memoryview)):
            keys = list(keys)
            if keys and hasattr(keys[0], "__index__"):  # also a scalar of numpy
                try:
                    integers = np.fromiter(keys, np.int64, len(keys))
                except (OverflowError, TypeError, ValueError) as error:
                    raise InvalidShape(f"keys have to be signed integers of at most 64 bits: {error}") from error
                return self.words(integers)
            if set(map(len, keys)) - {self.width}:
                wrong = next(key for key in keys if len(key) != self.width)
                raise InvalidShape(f"a key of {len(wrong)} bytes in a filter for keys of {self.width} bytes")
            keys = b"".join(keys)
        keys = memoryview(keys).cast("B")
        if len(keys) % self.width:
            raise InvalidShape(f"a buffer of {len(keys)} bytes is not a whole number of keys of {self.width} bytes")
        return np.frombuffer(keys, "<u8").astype(np.uint64, copy=False).reshape(-1, self.width // 8)

    def _blake2b(self, keys: Any) -> U64:
        """Return the BLAKE2b digests of keys of any length as little-endian 64-bit words, shape ``(n, 2)``."""
        if isinstance(keys, (bytes, bytearray, memoryview, np.ndarray)):
            raise InvalidShape(
                "one buffer for keys of any length; pass an iterable of bytes, or give the filter a width"
            )
        fresh = blake2b(self.secret, digest_size=16).copy
        digests = b"".join([(c := fresh()).update(key) or c.digest() for key in keys])  # type: ignore[func-returns-value]
        return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def compile_function(argument: str, names: dict[str, Any], *lines: str) -> Callable[[Any], Any]:
    """Compile a function of one argument with the body ``lines``, which may use ``names``.

    An unrolled check takes half the time of a loop, and the names of a closure need no dictionary look-up. The source
    consists only of expressions of the filters and of integers.
    """
    body = "\n".join(f"  {line}" for line in lines)
    return _compiled(f"def make({', '.join(names)}):\n def check({argument}):\n{body}\n return check")(**names)


@lru_cache(maxsize=64)  # all shards of a generation have the same source
def _compiled(source: str) -> Callable[..., Callable[[Any], Any]]:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    make: Callable[..., Callable[[Any], Any]] = namespace["make"]
    return make


def _murmur3_x64_128(words: U64, suffix: bytes, scratch: U64) -> tuple[U64, U64]:
    """Hash each row of ``words`` followed by ``suffix``: MurmurHash3_x64_128, seed 0 (Appleby, public domain).

    Both halves are rows of ``scratch``, which has shape ``(4, n or more)``.
    """
    h1, h2, k, spare = scratch[:, : len(words)]
    h1.fill(0)
    h2.fill(0)
    tail = [int.from_bytes(suffix[at : at + 8], "little") for at in range(0, len(suffix), 8)]
    count = words.shape[1] + len(tail)
    for at in range(count):
        c1, c2, inner, outer, plus = _HALVES[at % 2]
        h, other = (h2, h1) if at % 2 else (h1, h2)
        if at < words.shape[1]:
            np.multiply(words[:, at], np.uint64(c1), out=k)
            _rotl(k, inner, spare)
            k *= np.uint64(c2)
            h ^= k
        else:  # a word of the secret: the same for every key
            word = tail[at - words.shape[1]] * c1 & _MASK64
            word = (word << inner | word >> (64 - inner)) & _MASK64
            h ^= np.uint64(word * c2 & _MASK64)
        if at == count - 1 and count % 2:  # half a block at the end is only mixed in
            break
        _rotl(h, outer, spare)
        h += other
        h *= np.uint64(5)
        h += np.uint64(plus)
    for h in (h1, h2):
        h ^= np.uint64(8 * count)
    h1 += h2
    h2 += h1
    _fmix(h1, spare)
    _fmix(h2, spare)
    h1 += h2
    h2 += h1
    return h1, h2


def _rotl(k: U64, bits: int, spare: U64) -> None:
    np.right_shift(k, np.uint64(64 - bits), out=spare)
    np.left_shift(k, np.uint64(bits), out=k)
    k |= spare


def _fmix(k: U64, spare: U64) -> None:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, None):
        np.right_shift(k, np.uint64(33), out=spare)
        k ^= spare
        if factor:
            k *= np.uint64(factor)
