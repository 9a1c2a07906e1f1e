"""A filter as version 0.1 wrote it: its format, which this release refuses, in numbers of its own."""

from __future__ import annotations

import struct
from zlib import adler32, crc32

#: The partitions of a Bloom filter for 100 keys at 1%, in bits.
_SIZES = (197, 199, 211, 223, 227)
_TAG = 0x1234_5678_9ABC_DEF0


def bloom_filter(width: int = 8, key_id: int = 0) -> bytes:
    """Return the bytes of a Bloom filter with one bit of each partition set.

    magic 8 | tag 8 | version, kind, width, parameters: u16 each | shard, shards: u32 each | key id u64 |
    capacity u64 | error rate f64 | body bytes u64 | parameters u64 each | CRC-32 of all this | padding to 64 |
    body | Adler-32 of the body u32 | dirty u32 | tag 8
    """
    body = b"".join(b"\x80".ljust(-(-size // 8), b"\0") for size in _SIZES)
    body = body.ljust(-(-len(body) // 8) * 8, b"\0")
    head = struct.pack(
        ">8sQHHHHIIQQdQ", b"\x89bloomg\n", _TAG, 1, 1, width, len(_SIZES), 0, 1, key_id, 100, 0.01, len(body)
    )
    head += struct.pack(f">{len(_SIZES)}Q", *_SIZES)
    head += struct.pack(">I", crc32(head))
    return head.ljust(-(-len(head) // 64) * 64, b"\0") + body + struct.pack(">IIQ", adler32(body), 0, _TAG)
