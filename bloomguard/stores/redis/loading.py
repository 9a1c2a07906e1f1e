"""Loading a new generation: create empty shards on the server, build on the heap, then transfer in pieces.

Meanwhile other processes add to the shards on the server; the transfer merges with those adds and loses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ...exceptions import StoreError
from ...filters.bulk import np
from ...filters.codec import TRAILER_BYTES, Frame
from ...filters.layout import Layout
from ..frames import FrameGeneration

if TYPE_CHECKING:
    from .store import RedisStore

PIECE = 1 << 18  # bytes that one command of a bulk transfer carries: other clients wait for about 5 ms
_STEP = 1 << 20  # bytes of zeros by which one command extends a new key


class Draft(FrameGeneration):
    """A new generation on the heap of the process that builds it."""

    _pause_seconds = 0.0  # nobody waits for its lock

    def __init__(self, layout: Layout) -> None:
        self.frames = [Frame.format(header, memoryview(bytearray(header.frame_bytes))) for header in layout.headers]
        for frame in self.frames:
            frame.begin()  # frames on a server are marked as having an unfinished write
        super().__init__("draft", layout, [frame.buffer for frame in self.frames], lambda exclusive: nullcontext())

    def add_entries(self, shard: int, entries: Sequence[bytes]) -> None:
        """Add the entries of a shard's journal: fingerprint and bucket, u32 little-endian each."""
        if not entries:
            return
        bits = self.layout.shape.bits  # type: ignore[attr-defined]
        both = np.frombuffer(b"".join(entries), "<u4").astype(np.uint64).reshape(-1, 2)
        self.filters()[shard].add_digests(both[:, 1].copy(), both[:, 0] << np.uint64(64 - bits))


def load_key(key: str) -> str:
    """Return the key to which a shard's body is transferred; its hash tag puts it in the shard's slot of a Cluster."""
    return f"{key}:load"


def journal_key(key: str) -> str:
    """Return the key of the list of adds to a cuckoo shard during its build; the list's first entry is empty."""
    return f"{key}:journal"


def make(store: RedisStore, layout: Layout, keys: Sequence[str], frames: Sequence[Frame], identity: str) -> None:
    """Create empty shards: first zeros, then the trailer, last the header. Raises :class:`StoreError`."""
    for key, frame in zip(keys, frames):
        size = len(frame.buffer)
        if not layout.filter_class.plain_bits:
            store.load([(key, ("RPUSH", journal_key(key), b""))], identity)
        for end in range(_STEP, size, _STEP):
            store.load([(key, ("SETRANGE", key, end - 1, b"\0"))], identity)
        store.load([(key, ("SETRANGE", key, size - TRAILER_BYTES, bytes(frame.buffer[-TRAILER_BYTES:])))], identity)
        head = bytes(frame.buffer[: frame.header.body_offset])
        store.load([(key, ("SETRANGE", key, 0, head))], identity)


def gather(store: RedisStore, key: str, frame: Frame, identity: str) -> str:
    """Transfer one body in pieces to the key :func:`load_key`, and return that key.

    It has no header and no trailer, so that a shard that was deleted meanwhile is not restored as a valid one.
    """
    gathered = load_key(key)
    start, body = frame.header.body_offset, frame.body
    store.load([(key, ("UNLINK", gathered)), (key, ("SETRANGE", gathered, start - 1, b"\0"))], identity)
    for at in range(0, len(body), PIECE):
        (size,) = store.load([(key, ("APPEND", gathered, bytes(body[at : at + PIECE])))], identity)
    if size != start + len(body):
        raise StoreError(f"{gathered} has {size:,} bytes where {start + len(body):,} were sent")
    return gathered
