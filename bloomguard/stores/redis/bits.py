"""Redis commands for Bloom filters and exact bitmaps: one ``BITFIELD`` reads or sets the bits of many keys.

Bit commands cannot update a checksum, so frames on a server are marked as having an unfinished write, which means that
their checksum is not used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from ...filters import CorruptFilter
from ...filters.bulk import np
from ...filters.codec import TAG_OFFSET
from ...filters.layout import Layout
from .commands import Command, Part
from .loading import Draft, gather

if TYPE_CHECKING:
    from ...filters.bulk import U64
    from .store import RedisStore

_BITS = 2_000  # bits that one command sets
_CHECKED = 200  # keys that one command checks
_BIT_BYTES = 36  # bytes of a command for each bit that it sets
_MOST_IMAGE_BYTES = 1 << 20  # other clients wait for some 2 ms
_TAG_BYTES = 8
_TAG_WORDS = 8  # words of a command that reads only the two tags


class Operation(NamedTuple):
    """A ``BITFIELD`` subcommand: its number of words, and the encoded words before and after the offset."""

    words: int
    before: str
    after: str = ""

    def encode(self, offsets: Sequence[int]) -> bytes:
        """Return the subcommands at all ``offsets``, of which there is at least one."""
        between = f"\r\n{self.after}{self.before}$"
        each = between.join([f"{len(offset)}\r\n{offset}" for offset in map(str, offsets)])
        return f"{self.before}${each}\r\n{self.after}".encode()


def lost(key: str) -> CorruptFilter:
    """Return the error for a shard without the expected tags."""
    return CorruptFilter(f"{key} is missing or was replaced: evicted, flushed or deleted? Rebuild")


def encode(*words: object) -> str:
    """Encode words of a command in the Redis protocol."""
    return "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in map(str, words))


GET = Operation(3, encode("GET", "u1"))
_SET = Operation(4, encode("SET", "u1"), encode(1))


class ShardCommands(ABC):
    """Commands to the shards with these ``keys``. Each ``BITFIELD`` command reads both tags of a shard first.

    They are encoded here, which takes half the time of redis-py's encoder.
    """

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self.layout = layout
        self.keys = keys
        self.body_bit = 8 * layout.header.body_offset
        self._tag = layout.header.tag
        self._recent = layout.recent_positions
        tags = ("GET", "u63", 8 * TAG_OFFSET, "GET", "u63", 8 * (layout.header.frame_bytes - _TAG_BYTES))
        self._starts = [encode("BITFIELD", key, *tags).encode() for key in keys]

    def command(self, shard: int, each: Operation = GET, positions: Sequence[int] = ()) -> Command:
        """Return a command that reads both tags of a shard and does ``each`` at the bits ``positions`` of its body."""
        first = self.body_bit
        bits = each.encode([first + position for position in positions]) if positions else b""
        return self.joined(shard, each.words * len(positions), bits)

    def joined(self, shard: int, words: int, encoded: bytes) -> Command:
        """Return a command that reads both tags of a shard, and the ``encoded`` subcommands of so many ``words``."""
        return self.keys[shard], b"*%d\r\n%b%b" % (_TAG_WORDS + words, self._starts[shard], encoded)

    @abstractmethod
    def check(self, shard: int, digests: Sequence[int]) -> Command:
        """Return the command that checks keys of one shard, for :meth:`answers`."""

    @abstractmethod
    def answers(self, shard: int, digests: Sequence[int], reply: Any) -> list[bool]:
        """Return for each key whether the filter may contain it; raises :class:`CorruptFilter`."""

    def checks(self, shard: int, digests: Sequence[int]) -> Part:
        """Return the commands that check many keys of one shard, and the function that decodes their replies."""
        parts = [digests[start : start + _CHECKED] for start in range(0, len(digests), _CHECKED)]

        def answers(replies: Sequence[Any]) -> list[bool]:
            return [found for part, reply in zip(parts, replies) for found in self.answers(shard, part, reply)]

        return Part([self.check(shard, part) for part in parts], answers)

    def check_recent(self, shard: int, digest: int) -> Command:
        """Return the command that reads the recent bits of one key, for :meth:`all_set`."""
        return self.command(shard, GET, self._recent(digest))

    def all_set(self, shard: int, reply: Any) -> bool:
        """Return whether all bits in the reply are set; raises :class:`CorruptFilter` unless its tags are right."""
        self.check_tags(shard, reply)
        return 0 not in reply

    def check_tags(self, shard: int, reply: Any) -> None:
        """Raise :class:`CorruptFilter` unless the tags in the reply are right."""
        if reply[0] != self._tag or reply[1] != self._tag:
            raise lost(self.keys[shard])


class Bits(ShardCommands):
    """Commands that check, add and set bits in the shards of a filter of plain bits."""

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        super().__init__(layout, keys)
        self._positions: Callable[[int], list[int]] = layout.shape.positions  # type: ignore[attr-defined]

    def check(self, shard: int, digests: Sequence[int]) -> Command:
        return self.command(shard, GET, [at for each in digests for at in self._positions(each)])

    def answers(self, shard: int, digests: Sequence[int], reply: Any) -> list[bool]:
        if len(digests) == 1:  # nearly always
            return [self.all_set(shard, reply)]
        self.check_tags(shard, reply)
        bits = iter(reply[2:])
        # Of a bitmap, only some keys have several bits.
        return [0 not in list(islice(bits, len(self._positions(each)))) for each in digests]

    def adds(self, shard: int, digests: Sequence[int], once: bool = False) -> Part:
        """Return the commands that add keys to one shard, and the function that checks their replies."""
        return self.sets(shard, [at for each in digests for at in (*self._positions(each), *self._recent(each))])

    def many_adds(self, shard: int, low: U64, high: U64, once: bool = False) -> Part:
        """Do the same as :meth:`adds` for many digests, given their low and high parts."""
        positions, size = self.layout.written_positions(low), self.layout.header.frame_bytes
        if _BIT_BYTES * len(positions) < size or size > _MOST_IMAGE_BYTES:
            return self.sets(shard, np.sort(positions).tolist())
        image = np.zeros(size, np.uint8)  # without tags, so that a shard that is missing stays invalid
        masks = (128 >> (positions & 7)).astype(np.uint8)
        np.bitwise_or.at(image, (self.body_bit + positions) >> 3, masks)
        key = self.keys[shard]
        sent = f"{key}:add:{token_hex(8)}"  # in the slot of the shard
        commands, check = self._joins(shard, sent)
        send: Command = (key, ("SETRANGE", sent, 0, image.tobytes()))
        return Part([send, *commands], lambda replies: check(replies[1:]))

    def _joins(self, shard: int, sent: str) -> Part:
        """Return the commands that OR the bits at the key ``sent`` into a shard, and delete that key."""
        key = self.keys[shard]

        def check(replies: Sequence[Any]) -> None:
            _, removed, tags = replies
            self.check_tags(shard, tags)
            if removed != 1:
                raise CorruptFilter(f"{sent} was evicted, perhaps before its bits were in {key}")

        words = ("BITOP", "OR", key, key, sent), ("UNLINK", sent)
        return Part([*((key, each) for each in words), self.command(shard)], check)

    def sets(self, shard: int, positions: Sequence[int]) -> Part:
        """Return the commands that set bits of one shard's body, and the function that checks their replies."""

        def check(replies: Sequence[Any]) -> None:
            for reply in replies:
                self.check_tags(shard, reply)

        starts = range(0, len(positions), _BITS)
        return Part([self.command(shard, _SET, positions[start : start + _BITS]) for start in starts], check)

    def seal(self, store: RedisStore, draft: Draft, identity: str) -> None:
        """Transfer the bits of the draft and OR them into the shards, where other processes have set bits meanwhile.

        Raises :class:`CorruptFilter` if a shard is missing, and :class:`StoreError`.
        """
        for shard, (key, frame) in enumerate(zip(self.keys, draft.frames)):
            commands, check = self._joins(shard, gather(store, key, frame, identity))
            check(store.load(commands, identity))
