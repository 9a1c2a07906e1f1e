"""A generation on Redis or Valkey servers: checks, adds and discards, and reading whole shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...filters import CorruptFilter
from ...filters.base import BodyFilter
from ...filters.bulk import np, one_by_one
from ...filters.codec import Frame
from ...filters.layout import Layout
from ..base import Generation
from .bits import Bits
from .commands import Command, Part
from .cuckoo import Fingerprints
from .loading import PIECE, Draft

if TYPE_CHECKING:
    from ...filters.base import Keys, RowKeys
    from .store import RedisStore

_MANY = 64  # keys from which on numpy computes their bits faster
_HEADERS = 256  # headers to read in one round trip
_POSITIONS = 8_000  # bits to set in one round trip


class RedisGeneration(Generation):
    """Shards at the Redis keys ``keys``.

    Bulk adds of the creating process stay in ``draft``, which no check reads, until :meth:`seal`.
    """

    def __init__(
        self, store: RedisStore, guard: str, name: str, layout: Layout, identity: str, draft: Draft | None = None
    ) -> None:
        self.name = name
        self.layout = layout
        self.identity = identity
        self.keys = [store.key(guard, name, shard) for shard in range(layout.header.shards)]
        self.supports_async = store.supports_async
        self._store = store
        self._draft = draft
        self._kind = (Bits if layout.filter_class.plain_bits else Fingerprints)(layout, self.keys)

    def might_contain(self, key: bytes) -> bool:
        """See :attr:`Generation.might_contain`."""
        shard, digest = self.layout.locate(key)
        (reply,) = self._store.read([self._kind.check(shard, [digest])], self.identity)
        return self._kind.answers(shard, [digest], reply)[0]

    async def amight_contain(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        (reply,) = await self._store.aread([self._kind.check(shard, [digest])], self.identity)
        return self._kind.answers(shard, [digest], reply)[0]

    def might_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        """Check all keys in one round trip, with one command for some hundred keys of a shard."""
        keys = list(keys)
        placed = self._placed(keys)
        parts = [self._kind.checks(shard, digests) for shard, (_, digests) in placed.items()]
        found = _read(parts, self._store.read(_commands(parts), self.identity) if keys else [])
        answers = [False] * len(keys)
        for (numbers, _), some in zip(placed.values(), found):
            for number, answer in zip(numbers, some):
                answers[number] = answer
        return answers

    def _placed(self, keys: Iterable[bytes]) -> dict[int, tuple[list[int], list[int]]]:
        """Map each shard to the indexes of its keys in ``keys``, and their digests."""
        placed: dict[int, tuple[list[int], list[int]]] = {}
        for number, (shard, digest) in enumerate(map(self.layout.locate, keys)):
            part = placed.get(shard)
            if part is None:
                part = placed[shard] = ([], [])
            part[0].append(number)
            part[1].append(digest)
        return placed

    def is_recent(self, key: bytes) -> bool:
        shard, command = self._recent_command(key)
        (reply,) = self._store.read([command], self.identity)
        return self._kind.all_set(shard, reply)

    async def ais_recent(self, key: bytes) -> bool:
        shard, command = self._recent_command(key)
        (reply,) = await self._store.aread([command], self.identity)
        return self._kind.all_set(shard, reply)

    def _recent_command(self, key: bytes) -> tuple[int, Command]:
        shard, digest = self.layout.locate(key)
        return shard, self._kind.check_recent(shard, digest)

    def add(self, keys: RowKeys, *, once: bool = False) -> None:
        self._change(self._adds(keys, once))

    def _adds(self, keys: RowKeys, once: bool) -> list[Part]:
        if len(keys) == 1:  # nearly always
            shard, digest = self.layout.locate(keys[0] if type(keys) is list else one_by_one(keys)[0])
            return [self._kind.adds(shard, [digest], once)]
        if len(keys) < _MANY:
            placed = self._placed(one_by_one(keys))
            return [self._kind.adds(shard, digests, once) for shard, (_, digests) in placed.items()]
        return [self._kind.many_adds(shard, low, high, once) for shard, low, high in self.layout.locate_many(keys)]

    def _change(self, parts: Sequence[Part]) -> None:
        if len(parts) == 1:  # nearly always
            commands, check = parts[0]
            check(self._store.write(commands, self.identity))
        elif parts:
            _read(parts, self._store.write(_commands(parts), self.identity))

    def discard(self, keys: Iterable[bytes]) -> None:
        if not isinstance(self._kind, Fingerprints):
            super().discard(keys)  # raises
        else:
            self._change([self._kind.discards(shard, each) for shard, (_, each) in self._placed(keys).items()])

    def add_many(self, keys: Keys) -> None:
        if self._draft is not None:
            self._draft.add_many(keys)
        else:
            self._change([self._kind.many_adds(*each) for each in self.layout.locate_many(keys)])

    def seal(self) -> None:
        """Transfer the draft to the server and merge it with the adds of other processes."""
        if self._draft is not None:
            self._kind.seal(self._store, self._draft, self.identity)
            self._draft = None

    def check_headers(self) -> None:
        """Compare the header and size of every shard with the layout; raises :class:`CorruptFilter`."""
        headers = self.layout.headers
        for start in range(0, len(headers), _HEADERS):
            some = list(zip(self.keys, headers))[start : start + _HEADERS]
            heads = [(key, ("GETRANGE", key, 0, header.body_offset - 1)) for key, header in some]
            sizes = [(key, ("STRLEN", key)) for key, _ in some]
            replies = self._store.read([*heads, *sizes], self.identity)
            for (key, header), head, size in zip(some, replies, replies[len(some) :]):
                if head != header.pack() or size != header.frame_bytes:
                    raise CorruptFilter(f"{key} belongs to another build or is incomplete")

    def merge(self, shard: int, body: memoryview) -> int:
        if self._draft is not None:
            return self._draft.merge(shard, body)
        assert isinstance(self._kind, Bits)
        missing = np.frombuffer(body, np.uint8) & ~np.frombuffer(self.read_shard(shard).body, np.uint8)
        at = np.flatnonzero(missing)
        rows, bits = np.nonzero(np.unpackbits(missing[at]).reshape(-1, 8))
        positions = (8 * at[rows] + bits).tolist()
        for start in range(0, len(positions), _POSITIONS):
            self._change([self._kind.sets(shard, positions[start : start + _POSITIONS])])
        return len(positions)

    def read_shard(self, shard: int) -> Frame:
        key, size = self.keys[shard], self.layout.header.frame_bytes
        buffer = memoryview(bytearray(size))
        for start in range(0, size, PIECE):
            end = min(start + PIECE, size)
            (piece,) = self._store.load([(key, ("GETRANGE", key, start, end - 1))], self.identity)
            if len(piece) != end - start:
                raise CorruptFilter(f"{key} is incomplete: {len(piece):,} bytes where {end - start:,} were expected")
            buffer[start:end] = piece
        frame = Frame.open(buffer)
        if frame.header != self.layout.headers[shard]:
            raise CorruptFilter(f"{key} belongs to another build")
        frame.seal()
        return frame

    def filters(self) -> Iterator[BodyFilter]:
        return (self.layout.attach(self.read_shard(shard)) for shard in range(len(self.keys)))


def _commands(parts: Iterable[Part]) -> list[Command]:
    """Return the commands of one round trip."""
    return [command for commands, _ in parts for command in commands]


def _read(parts: Iterable[Part], replies: Sequence[Any]) -> list[Any]:
    """Return what each part reads in its replies; raises :class:`CorruptFilter`."""
    rest = iter(replies)
    return [read(list(islice(rest, len(commands)))) for commands, read in parts]
