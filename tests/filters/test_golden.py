"""Bytes are pinned: what one release wrote, the next one reads, and writes the same."""

import hashlib

import numpy as np
import pytest

from bloomguard.filters import codec

from .kinds import KINDS, SECRET, key

#: SHA-256 of each kind's frame with tag 1, after the keys 0 to 299 in bulk and 300 to 399 one at a time. Where a bulk
#: add puts a fingerprint among its eight slots is no part of the format, so cuckoo filters get all keys one at a time.
PINNED = {
    "bloom": "e96a620ce07434daad4fd966a90ead93",
    "counting": "dfe3260352b7e16dcc01f65f04d2753d",
    "spectral": "09ae46d82d4738eb05a31f1fb418d19c",
    "cuckoo-8": "ef4a6ec9ec6915412d3a9cf6e678a09d",
    "cuckoo-16": "5055ce08cdcdf43c95e6b8a063154068",
    "cuckoo-32": "99095efaa0fccbba9a96e1c192a493a6",
    "bitmap": "efaa7dd65fa056ac241dbff20c0be676",
    "bitmap, all outside": "37007c947b1b43dbf7b44f267cc8c261",
    "scalable": "d05bc5fecc48cfc3172750a2a5a0d1f2",
    "scalable-cuckoo": "c13b096270f6e34bf2e10944868ca742",
    "rotating": "bbc5a3e385a37d2767a5a47bdfba2d59",
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
    )
    data = header.pack()

    assert data.hex(" ", 8) == (
        "89626c6f6f6d670a 02468acf13579bde 0001000100080002 0000000100000003 fedcba9876543210 00000000000003e8 "
        "3f847ae147ae147b 00000000000004c8 000000000000079f 00000000000007b5 "
        + data[80:84].hex()
        + "00000000 "
        + " ".join(["0000000000000000"] * 5)
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
