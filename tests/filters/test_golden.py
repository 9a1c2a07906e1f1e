"""Bytes are pinned: what one release wrote, the next one reads, and writes the same."""

import hashlib

import numpy as np
import pytest

from bloomguard.filters import codec

from .kinds import KINDS, SECRET, key

#: SHA-256 of each kind's frame with tag 1, after the keys 0 to 299 in bulk and 300 to 399 one at a time. Where a bulk
#: add puts a fingerprint among its eight slots is no part of the format, so cuckoo filters get all keys one at a time.
PINNED = {
    "bloom": "fb43f582e70c61f7248634db0df61255",
    "counting": "c70ae6d46bb270bb968877e5176ef31a",
    "spectral": "84fc529c62cc487e32841cf7cb65c455",
    "cuckoo-8": "ef4cb39ffaa00fa67908474a1d101008",
    "cuckoo-16": "d60bc51f7c693890c4c9de8e5e089b24",
    "cuckoo-32": "55be6ff19e7c3070dca6496601e9dc31",
    "bitmap": "5af43c50fbe4c330b27bfc7080417176",
    "bitmap, all outside": "200cf7bd9c033e816da53827adbcb62b",
    "scalable": "7985ed099766005a1c3862dc2a080a5d",
    "scalable-cuckoo": "3ecec7392a25561cad38835d1e886bda",
    "rotating": "503f84451b409fe98e155dcfcaa3c60f",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_bytes_of_every_kind_are_pinned(kind, monkeypatch):
    """The layout of bits, slots and counters, the hash and the header: a change of any is a new format version."""
    monkeypatch.setattr(codec, "new_tag", lambda: 1)
    filter = kind.make(400, secret=SECRET, **({"clock": lambda: 120.0} if kind.name == "rotating" else {}))
    bulk = 0 if "cuckoo" in kind.name else 300
    filter.add_many(np.arange(bulk))
    for number in range(bulk, 400):
        filter.add(key(number))

    assert hashlib.sha256(filter.to_bytes()).hexdigest()[:32] == PINNED[kind.name]


def test_the_header_is_pinned():
    """Field by field, big-endian, as the format's description has it."""
    header = codec.Header(
        kind="bloom",
        tag=0x0123456789ABCDEF,
        capacity=1_000,
        error_rate=0.01,
        body_bytes=1_224,
        parameters=(1_951, 1_973),
        width=8,
        key_id=0xFEDCBA9876543210,
        shard=1,
        shards=3,
        recent=(32_768, 46_133, 46_141),
    )
    data = header.pack()

    assert data.hex(" ", 8) == (
        "89626c6f6f6d670a 02468acf13579bde 0003000100080002 0000000100000003 fedcba9876543210 00000000000003e8 "
        "3f847ae147ae147b 00000000000004c8 000080000000b435 0000b43d00000000 0000079f00000000 000007b5"
        + data[92:96].hex()
        + " "
        + " ".join(["0000000000000000"] * 4)
    )
    assert codec.Header.unpack(data) == header
    assert codec.KINDS == {
        "bloom": 1,
        "counting": 2,
        "spectral": 3,
        "cuckoo": 4,
        "bitmap": 5,
        "scalable": 6,
        "scalable-cuckoo": 7,
        "rotating": 8,
    }
