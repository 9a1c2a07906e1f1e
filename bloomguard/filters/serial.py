"""Filters as bytes, as streams and as JSON: each contains a frame of :mod:`.codec`, which is checked when read."""

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
    """Mixin: stream and JSON forms, based on :meth:`to_bytes` and :meth:`from_bytes`."""

    kind: ClassVar[str]

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Return the filter as one checksummed frame."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, secret: bytes = b"") -> Self:
        """Read a filter from the bytes of :meth:`to_bytes`. Raises :class:`CorruptFilter` for any other bytes."""
        raise NotImplementedError

    def _json_fields(self) -> dict[str, Any]:
        """Return the fields that the JSON form shows beside the frame."""
        return {name: getattr(self, name) for name in ("kind", "capacity", "error_rate")}

    def dump(self, stream: BinaryIO) -> int:
        """Write the frame to a binary stream; returns the bytes written."""
        data = self.to_bytes()
        stream.write(data)
        return len(data)

    @classmethod
    def load(cls, stream: BinaryIO, secret: bytes = b"", max_bytes: int | None = None) -> Self:
        """Read one frame from a binary stream in pieces. Raises :class:`CorruptFilter`, :class:`TooLarge`."""
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
        """Return the frame in base 64, with kind, capacity and error rate as readable fields."""
        return json.dumps(self._json_fields() | {"frame": base64.b64encode(self.to_bytes()).decode()})

    @classmethod
    def from_json(cls, text: str | bytes, secret: bytes = b"") -> Self:
        """Read a filter from the text of :meth:`to_json`. Raises :class:`CorruptFilter`."""
        try:
            fields = dict(json.loads(text))
            frame = base64.b64decode(fields.pop("frame"), validate=True)
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
            raise CorruptFilter(f"not the JSON form of a filter: {error!r}") from error
        self = cls.from_bytes(frame, secret)
        if fields != self._json_fields():
            raise CorruptFilter(f"the JSON fields are {fields}, but the frame has {self._json_fields()}")
        return self


def memory_bytes() -> int:
    """Return the size of the machine's memory, the default of ``max_bytes``."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return 1 << 40


def key_hash_of(header: codec.Header, secret: bytes) -> KeyHash:
    """Return the hash of a frame's keys. Raises :class:`CorruptFilter` if the frame was built with another secret."""
    try:
        key_hash = KeyHash(header.width, secret)
    except InvalidShape as error:
        raise CorruptFilter(str(error)) from error
    if key_hash.key_id != header.key_id:
        raise CorruptFilter(f"built with another secret: its key id is {header.key_id:#x}, not {key_hash.key_id:#x}")
    return key_hash


def _read(stream: BinaryIO, data: bytearray, count: int) -> None:
    """Append ``count`` bytes; allocates only what arrives, not what the header declares."""
    end = len(data) + count
    while len(data) < end:
        piece = stream.read(min(_PIECE, end - len(data)))
        if not piece:
            raise CorruptFilter(f"the stream ends after {len(data)} bytes of {end}")
        data += piece
