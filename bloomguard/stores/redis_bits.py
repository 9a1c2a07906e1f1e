"""Bloom filters and exact bitmaps in the words of a server: one ``BITFIELD`` reads or sets the bits of many keys.

Bit commands cannot keep a checksum up to date, so frames lie on a server with the mark of an unfinished write, which
says that the checksum does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from ..filters import CorruptFilter
from ..filters.codec import TAG_OFFSET
from ..filters.layout import Layout

#: Makes answers, one a key, of the replies to a batch; raises :class:`CorruptFilter`.
Answers = Callable[[Sequence[Any]], list[bool]]
#: Sees by the replies that a change was made; raises :class:`CorruptFilter`, or :class:`FilterFull`.
See = Callable[[Sequence[Any]], None]

_BITS = 2_000  # set or read by one command
_TAG_BYTES = 8
_WORDS = 8  # of a command that reads the two tags


def words(*each: object) -> str:
    """Words of a command as they go over the wire."""
    return "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in map(str, each))


#: For each bit of a ``BITFIELD``: how many words there are, those before its position, and those after it.
_GET = (3, words("GET", "u1"), "")
_SET = (4, words("SET", "u1"), words(1))


class Fields:
    """``BITFIELD`` commands to the shards that lie under ``keys``, each of which reads both of a shard's tags first.

    Put together here, in a third of the time that a client takes for any command.
    """

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self._keys = keys
        self._tag = layout.tag
        self.body_bit = 8 * layout.headers[0].body_offset
        tags = ("GET", "u63", 8 * TAG_OFFSET, "GET", "u63", 8 * (layout.frame_bytes - _TAG_BYTES))
        self._starts = [words("BITFIELD", key, *tags) for key in keys]

    def command(self, shard: int, each: tuple[int, str, str] = _GET, positions: Sequence[int] = ()) -> bytes:
        """Read both tags of a shard, and do ``each`` at the bits ``positions`` of its body."""
        count, before, after = each
        first = self.body_bit
        places = [str(first + position) for position in positions]
        bits = "".join([f"{before}${len(place)}\r\n{place}\r\n{after}" for place in places])
        return f"*{_WORDS + count * len(places)}\r\n{self._starts[shard]}{bits}".encode()

    def prove(self, shard: int, reply: Any) -> None:
        """Raise :class:`CorruptFilter` unless the tags in the reply are right."""
        if reply[0] != self._tag or reply[1] != self._tag:
            raise CorruptFilter(f"{self._keys[shard]} is gone, or no longer what it was: evicted, flushed or deleted?")


class Bits:
    """How a shard of plain bits is asked and added to."""

    def __init__(self, layout: Layout, keys: Sequence[str]) -> None:
        self._fields = Fields(layout, keys)
        self._positions: Callable[[int], list[int]] = layout.shape.positions  # type: ignore[attr-defined]

    def asking(self, shard: int, digest: int) -> bytes:
        """The command that asks for one key."""
        return self._fields.command(shard, _GET, self._positions(digest))

    def answer(self, shard: int, digest: int, reply: Any) -> bool:
        """Whether the key is in; raises :class:`CorruptFilter`."""
        self._fields.prove(shard, reply)
        return 0 not in reply

    def asking_many(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], Answers]:
        """The commands that ask for many keys of one shard, and what makes their answers of the replies."""
        each = [self._positions(digest) for digest in digests]

        def answers(replies: Sequence[Any]) -> list[bool]:
            bits: list[int] = []
            for reply in replies:
                self._fields.prove(shard, reply)
                bits += reply[2:]
            found, at = [], 0
            for positions in each:
                found.append(0 not in bits[at : at + len(positions)])
                at += len(positions)
            return found

        return self._commands(shard, _GET, each), answers

    def adding(self, shard: int, digests: Sequence[int]) -> tuple[list[bytes], See]:
        """The commands that add keys to one shard, and what sees by the replies that they are in."""
        return self._setting(shard, [self._positions(digest) for digest in digests])

    def setting(self, shard: int, positions: Sequence[int]) -> tuple[list[bytes], See]:
        """The same for bits of one shard's body."""
        return self._setting(shard, [positions])

    def _setting(self, shard: int, positions: Sequence[Sequence[int]]) -> tuple[list[bytes], See]:
        def see(replies: Sequence[Any]) -> None:
            for reply in replies:
                self._fields.prove(shard, reply)

        return self._commands(shard, _SET, positions), see

    def _commands(self, shard: int, each: tuple[int, str, str], positions: Sequence[Sequence[int]]) -> list[bytes]:
        flat = list(chain.from_iterable(positions))
        return [self._fields.command(shard, each, flat[start : start + _BITS]) for start in range(0, len(flat), _BITS)]
