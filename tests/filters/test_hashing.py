"""Hashes: the published functions, pinned; one scalar and one vectorised way, bit-identical."""

import hashlib
import os
import subprocess
import sys

import mmh3
import numpy as np
import pytest

from bloomguard.filters import InvalidShape, KeyHash
from bloomguard.filters.hashing import MASK60

SECRET = bytes(range(32))


def test_murmurhash3_is_the_published_one():
    """SMHasher's verification value of MurmurHash3_x64_128 is 0x6384BA69: keys of 0 to 255 bytes, hashed together."""
    hashes = b"".join(mmh3.mmh3_x64_128_digest(bytes(range(length)), 256 - length) for length in range(256))

    assert mmh3.mmh3_x64_128_digest(hashes, 0)[:4] == (0x6384BA69).to_bytes(4, "little")


def test_a_fixed_width_key_is_hashed_with_murmurhash3():
    """Width 8 and 16 without a secret is MurmurHash3_x64_128 with seed 0, as an unsigned integer."""
    for width in (8, 16):
        key = os.urandom(width)

        assert KeyHash(width).digest(key) == mmh3.mmh3_x64_128_uintdigest(key)
        assert KeyHash(width, SECRET).digest(key) == mmh3.mmh3_x64_128_uintdigest(key + SECRET[:width])


def test_a_key_of_any_length_is_hashed_with_blake2b():
    """BLAKE2b of the secret and the key, whose 16 bytes MurmurHash3 permutes into an integer."""
    for secret in (b"", SECRET):
        digest = hashlib.blake2b(secret + b"paris", digest_size=16).digest()

        assert KeyHash(None, secret).digest(b"paris") == mmh3.mmh3_x64_128_uintdigest(digest)


@pytest.mark.parametrize(
    ("key_hash", "key", "digest"),
    [
        (KeyHash(8), (1).to_bytes(8, "little"), 0x3D8ACDB4D36D9C06004403B7FB05C44A),
        (KeyHash(8, SECRET), (1).to_bytes(8, "little"), 0x790C2EFC9A4BF5C3E5069079F9D0D4B),
        (KeyHash(16), bytes(16), 0xB465A9ECCD791CB64BBD1BF27DA918D6),
        (KeyHash(16, SECRET), bytes(16), 0x23D51D1FF29E5B7DDA17477F674F79F4),
        (KeyHash(None), b"paris", 0x790E5980360F8621A53B433606A3568C),
        (KeyHash(None, SECRET), b"paris", 0x25DB50E1249C75D0C06FE81BB85BC981),
    ],
)
def test_digests_are_pinned(key_hash, key, digest):
    """A filter that was written by one release is read by the next: these values never change."""
    assert key_hash.digest(key) == digest


def test_key_ids_are_pinned():
    """A key id tells secrets apart; it is part of what is written."""
    assert KeyHash(8).key_id == 0
    assert KeyHash(None, SECRET).key_id == 0xF044527A4F97CB99
    assert KeyHash(8, SECRET).key_id == KeyHash(8, SECRET[:16]).key_id != KeyHash(16, SECRET).key_id


@pytest.mark.parametrize("secret", [b"", SECRET[:16], SECRET], ids=len)
@pytest.mark.parametrize("width", [8, 16, None])
@pytest.mark.parametrize("count", [0, 1, 1_000, 70_000])
def test_vectorised_digests_are_the_scalar_ones(width, secret, count):
    """For every width, secret and batch size, over chunk borders, bit for bit."""
    key_hash = KeyHash(width, secret)
    keys = [os.urandom(width or 1 + number % 40) for number in range(count)]
    low, high = key_hash.digests(keys)
    digests = list(map(key_hash.digest, keys))

    assert low.tolist() == [digest & MASK60 for digest in digests]
    assert high.tolist() == [digest >> 64 for digest in digests]
    if width:
        assert key_hash.digests(b"".join(keys))[0].tolist() == low.tolist()


def test_signed_and_unsigned_arrays_of_one_value_are_one_key():
    key_hash = KeyHash(8)
    values = [0, 1, 127]
    forms = [np.array(values, kind) for kind in ("i1", "u1", "<i4", ">i4", "u8", "i8", ">u8")]

    assert len({tuple(key_hash.digests(form)[0].tolist()) for form in forms}) == 1
    assert key_hash.digests(np.array([-1]))[0] == key_hash.digest(b"\xff" * 8) & MASK60


def test_a_secret_moves_every_key():
    """Two secrets share no digest, so nobody outside can tell which bits a key takes."""
    keys = np.arange(1_000)
    lows = [set(KeyHash(8, secret).digests(keys)[0].tolist()) for secret in (b"", SECRET, SECRET[::-1])]

    assert len(set.union(*lows)) == 3_000


def test_digests_do_not_depend_on_the_process():
    """Builtin ``hash()`` would: two interpreters with different hash seeds agree on ours."""
    code = "from bloomguard.filters import KeyHash; print(KeyHash(None).digest(b'paris'))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(answers) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7,), "width is 7; keys are 8 or 16 bytes wide, or None"),
        ((8, b"short"), "a secret of 5 bytes; it has to be empty or of 16 to 64 bytes"),
        ((None, b"x" * 65), "a secret of 65 bytes"),
    ],
)
def test_hashes_that_cannot_be_are_named(arguments, message):
    with pytest.raises(InvalidShape, match=message):
        KeyHash(*arguments)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint16, bool])
def test_integers_of_every_kind_are_keys(kind):
    """Those that come one by one out of an array, too."""
    found, expected = (KeyHash(8, SECRET).digests(keys) for keys in ([kind(1), kind(0)], [1, 0]))

    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


def test_a_buffer_of_keys_of_any_length_is_refused():
    """Where one key ends and the next begins cannot be seen; the message says what to do."""
    with pytest.raises(InvalidShape, match="pass an iterable of bytes, or give the filter a width"):
        KeyHash().digests(b"parislondon")
    with pytest.raises(InvalidShape, match="for keys of 16 bytes"):
        KeyHash(16).digests(np.arange(3))


def test_equal_hashes_are_of_one_width_and_secret():
    assert KeyHash(8, SECRET) == KeyHash(8, SECRET)
    assert KeyHash(8, SECRET) != KeyHash(8)
    assert KeyHash(8) != KeyHash(16)
    assert KeyHash(8) != 8
