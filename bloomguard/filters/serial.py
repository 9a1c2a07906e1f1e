"""A filter as bytes, as a stream and as JSON: all of them the one frame of :mod:`.codec`, checked when read."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from . import codec
from .errors import CorruptFilter, InvalidShape, TooLarge
from .hashing import KeyHash

if TYPE_CHECKING:
    from typing_extensions import Self

_PIECE = 1 << 20


class Serial:
    """The stream and JSON forms of whatever has :meth:`to_bytes` and :meth:`from_bytes`."""

    kind: ClassVar[str]

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """The filter as bytes that prove themselves."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes = b"") -> Self:
        """The filter that :meth:`to_bytes` wrote; raises :class:`CorruptFilter` for anything else."""
        raise NotImplementedError

    def _figures(self) -> dict[str, Any]:
        """What a reader of JSON wants to see."""
        raise NotImplementedError

    def dump(self, stream: BinaryIO) -> int:
        """Write the frame to a binary stream; returns the bytes written."""
        data = self.to_bytes()
        stream.write(data)
        return len(data)

    @classmethod
    def load(cls, stream: BinaryIO, secret: bytes = b"", max_bytes: int | None = None) -> Self:
        """Read one frame from a binary stream, a piece at a time. Raises :class:`CorruptFilter`, :class:`TooLarge`."""
        data = bytearray()
        _read(stream, data, codec.FIXED_BYTES)
        _read(stream, data, codec.header_bytes(data) - len(data))
        header = codec.Header.unpack(data)
        limit = memory_bytes() if max_bytes is None else max_bytes
        if header.frame_bytes > limit:
            raise TooLarge(f"a frame of {header.frame_bytes:,} bytes, over max_bytes={limit:,}")
        _read(stream, data, header.frame_bytes - len(data))
        return cls.from_bytes(data, secret)

    def to_json(self) -> str:
        """The frame in base 64, beside the figures that a reader of JSON wants to see."""
        return json.dumps(self._figures() | {"frame": base64.b64encode(self.to_bytes()).decode()})

    @classmethod
    def from_json(cls, text: str | bytes, secret: bytes = b"") -> Self:
        """The filter of :meth:`to_json`. Raises :class:`CorruptFilter`."""
        try:
            told = dict(json.loads(text))
            frame = base64.b64decode(told.pop("frame"), validate=True)
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
            raise CorruptFilter(f"not the JSON form of a filter: {error!r}") from error
        self = cls.from_bytes(frame, secret)
        if told != self._figures():
            raise CorruptFilter(f"the JSON tells of {told}, its frame of {self._figures()}")
        return self


def memory_bytes() -> int:
    """The machine's memory: what a filter may take unless ``max_bytes`` says otherwise."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 1 << 40


def key_hash_of(header: codec.Header, secret: bytes) -> KeyHash:
    """The hash of a frame's keys; raises :class:`CorruptFilter` if the secret is not the one it was built with."""
    try:
        key_hash = KeyHash(header.width, secret)
    except InvalidShape as error:
        raise CorruptFilter(str(error)) from error
    if key_hash.key_id != header.key_id:
        raise CorruptFilter(f"built with another secret: its key id is {header.key_id:#x}, not {key_hash.key_id:#x}")
    return key_hash


def _read(stream: BinaryIO, data: bytearray, count: int) -> None:
    """Append ``count`` bytes; memory grows with what arrives, never with what was announced."""
    end = len(data) + count
    while len(data) < end:
        piece = stream.read(min(_PIECE, end - len(data)))
        if not piece:
            raise CorruptFilter(f"the stream ends after {len(data)} bytes of {end}")
        data += piece
