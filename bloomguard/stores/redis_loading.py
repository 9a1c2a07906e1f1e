"""A build on its way to a server: made empty there, gathered on the heap of its builder, brought over in pieces.

Other processes add to the shards on the server meanwhile; what the builder brings joins that, and replaces nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..exceptions import StoreError
from ..filters import CorruptFilter
from ..filters.codec import Frame
from ..filters.layout import Layout
from .redis_bits import Fields
from .redis_exchange import Command

if TYPE_CHECKING:
    from ..filters.base import Keys
    from .redis_cuckoo import Fingerprints

_PIECE = 1 << 18  # bytes a command carries in bulk: other clients wait some 5 ms for it
_ENTRIES = 10_000  # of a journal, read at once
_STEP = 1 << 20  # bytes of zeros a new key grows by at once


class Loads(Protocol):
    """What loading needs of a store: trips with a builder's patience."""

    def load(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """What builders do."""


class Draft:
    """The frames of a new generation on the heap of the process that builds it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.frames = [Frame.format(header, memoryview(bytearray(header.frame_bytes))) for header in layout.headers]
        for frame in self.frames:
            frame.begin()  # as frames lie on a server
        self.filters = [layout.attach(frame) for frame in self.frames]
        self.might_contain = layout.checker(self.filters)

    def add_many(self, keys: Keys) -> None:
        """Put many keys in."""
        for shard, low, high in self._layout.locate_many(keys):
            self.filters[shard].add_digests(low, high)

    def add_entries(self, shard: int, entries: Sequence[bytes]) -> None:
        """Put in what a shard's journal has: fingerprint and bucket, u32 little-endian each."""
        if not entries:
            return
        import numpy as np

        bits = self._layout.shape.bits  # type: ignore[attr-defined]
        both = np.frombuffer(b"".join(entries), "<u4").astype(np.uint64).reshape(-1, 2)
        self.filters[shard].add_digests(both[:, 1].copy(), both[:, 0] << np.uint64(64 - bits))


def gathering_key(key: str) -> str:
    """Where a shard's bits are gathered; in a Cluster the key's hash tag puts it beside the shard itself."""
    return f"{key}:load"


def journal_key(key: str) -> str:
    """A list of what others add to a shard of fingerprints while it is built; its first entry is empty."""
    return f"{key}:journal"


def make(store: Loads, layout: Layout, keys: Sequence[str], frames: Sequence[Frame], identity: str) -> None:
    """Make the shards, empty: zeros first, then the trailer, the header last. Raises :class:`StoreError`."""
    for key, frame in zip(keys, frames):
        size = len(frame.buffer)
        if not layout.filter_class.plain_bits:
            store.load([(key, ("RPUSH", journal_key(key), b""))], identity)
        for end in range(_STEP, size, _STEP):
            store.load([(key, ("SETRANGE", key, end - 1, b"\0"))], identity)
        store.load([(key, ("SETRANGE", key, size - 16, bytes(frame.buffer[-16:])))], identity)
        head = bytes(frame.buffer[: frame.header.body_offset])
        store.load([(key, ("SETRANGE", key, 0, head))], identity)


def join_bits(store: Loads, layout: Layout, keys: Sequence[str], frames: Sequence[Frame], identity: str) -> None:
    """Bring the bits of ``frames`` to the shards, beside those that others have set there meanwhile.

    Raises :class:`CorruptFilter` where a shard is no longer there, and :class:`StoreError`.
    """
    fields = Fields(layout, keys)
    for shard, (key, frame) in enumerate(zip(keys, frames)):
        gathered = gather(store, key, frame, identity)
        joined, _, tags = store.load(
            [
                (key, ("BITOP", "OR", key, key, gathered)),
                (key, ("UNLINK", gathered)),
                (key, fields.command(shard)),
            ],
            identity,
        )
        fields.prove(shard, tags)
        if joined != len(frame.buffer):
            raise CorruptFilter(f"{key} has {joined:,} bytes; its header tells of {len(frame.buffer):,}")


def join_fingerprints(store: Loads, kind: Fingerprints, keys: Sequence[str], draft: Draft, identity: str) -> None:
    """Bring the draft's shards, with what others have added to those on the server, which they replace.

    Raises :class:`CorruptFilter` where a shard is no longer there, and :class:`StoreError`.
    """
    for shard, (key, frame) in enumerate(zip(keys, draft.frames)):
        known = 1
        while True:
            entries = store.load([(key, ("LRANGE", journal_key(key), known, known + _ENTRIES - 1))], identity)[0]
            draft.add_entries(shard, entries)
            known += len(entries)
            if len(entries) < _ENTRIES:
                break
        gathered = gather(store, key, frame, identity)
        command, see = kind.joining(shard, gathered, frame, known)
        see(store.load([(key, command)], identity))


def gather(store: Loads, key: str, frame: Frame, identity: str) -> str:
    """Bring one body to where it is gathered, in pieces; returns that key.

    No header and no trailer: a shard that vanished in between must not come back whole by this.
    """
    gathered = gathering_key(key)
    start, body = frame.header.body_offset, frame.body
    store.load([(key, ("UNLINK", gathered)), (key, ("SETRANGE", gathered, start - 1, b"\0"))], identity)
    for at in range(0, len(body), _PIECE):
        (size,) = store.load([(key, ("APPEND", gathered, bytes(body[at : at + _PIECE])))], identity)
    if size != start + len(body):
        raise StoreError(f"{gathered} has {size:,} bytes where {start + len(body):,} were sent")
    return gathered
