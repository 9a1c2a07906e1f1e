"""Bytes are pinned: what one release wrote, the next one reads, and writes the same."""

import hashlib

import numpy as np
import pytest

from bloomguard.filters import codec

from .kinds import KINDS, SECRET, key

#: SHA-256 of each kind's frame with tag 1, after the keys 0 to 299 in bulk and 300 to 399 one at a time. Where a bulk
#: add puts a fingerprint among its eight slots is no part of the format, so cuckoo filters get all keys one at a time.
PINNED = {
    "bloom": "392aad4e90960c71658dbb4c8cb6f6d1",
    "counting": "7460ccefa27152d175e3b8dea77b4dbf",
    "spectral": "a9ea4dc0ab2c9becda6b713e7ada7804",
    "cuckoo-8": "982766a24af9b8a679c858ada50cd23c",
    "cuckoo-16": "f80b4a80f112ac1b592da4bc1e10a5c0",
    "cuckoo-32": "42887d36dee09558701805c2f3e90bce",
    "bitmap": "f28ba296ce165d0ab1bcc1b001001811",
    "bitmap, all outside": "d54d5134b84791a64a94e9c610e3a5f2",
    "scalable": "e1d41571f5dab66a966731902217d861",
    "scalable-cuckoo": "c4051c095f4ff3153caa0b78ac26256c",
    "rotating": "d253dc05362599fe20064a367d243f6f",
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
        "89626c6f6f6d670a 02468acf13579bde 0002000100080002 0000000100000003 fedcba9876543210 00000000000003e8 "
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
