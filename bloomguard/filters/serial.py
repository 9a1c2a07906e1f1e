"""A filter as bytes, as a stream and as JSON: all of them the one frame of :mod:`.codec`, checked when read."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from . import codec
from .errors import CorruptFilter, InvalidShape, TooLarge
from .hashing import KeyHash

if TYPE_CHECKING:
    from .base import BodyFilter

    F = TypeVar("F", bound=BodyFilter)

_PIECE = 1 << 20


def to_bytes(filter: BodyFilter) -> bytes:
    return codec.encode(filter.header(codec.new_tag()), filter.body)


def from_bytes(cls: type[F], data: bytes | bytearray | memoryview, secret: bytes) -> F:
    frame = codec.decode(data)
    key_hash = key_hash_of(frame.header, secret)
    if frame.header.shards != 1:
        raise CorruptFilter(f"shard {frame.header.shard} of {frame.header.shards}; a filter of its own is one shard")
    return cls.attach(frame.header, memoryview(bytearray(frame.body)), key_hash)


def key_hash_of(header: codec.Header, secret: bytes) -> KeyHash:
    """The hash of a frame's keys; raises :class:`CorruptFilter` if the secret is not the one it was built with."""
    try:
        key_hash = KeyHash(header.width, secret)
    except InvalidShape as error:
        raise CorruptFilter(str(error)) from error
    if key_hash.key_id != header.key_id:
        raise CorruptFilter(f"built with another secret: its key id is {header.key_id:#x}, not {key_hash.key_id:#x}")
    return key_hash


def dump(filter: BodyFilter, stream: BinaryIO) -> int:
    header = filter.header(codec.new_tag())
    stream.write(header.pack())
    body = filter.body
    for start in range(0, len(body), _PIECE):
        stream.write(body[start : start + _PIECE])
    stream.write(codec.trailer(header, body))
    return header.frame_bytes


def load(cls: type[F], stream: BinaryIO, secret: bytes, max_bytes: int) -> F:
    data = bytearray()
    _read(stream, data, codec.FIXED_BYTES)
    _read(stream, data, codec.header_bytes(data) - len(data))
    header = codec.Header.unpack(data)
    if header.frame_bytes > max_bytes:
        raise TooLarge(f"a frame of {header.frame_bytes:,} bytes, over max_bytes={max_bytes:,}")
    _read(stream, data, header.frame_bytes - len(data))
    return from_bytes(cls, data, secret)


def _read(stream: BinaryIO, data: bytearray, count: int) -> None:
    """Append ``count`` bytes; memory grows with what arrives, never with what was announced."""
    end = len(data) + count
    while len(data) < end:
        piece = stream.read(min(_PIECE, end - len(data)))
        if not piece:
            raise CorruptFilter(f"the stream ends after {len(data)} bytes of {end}")
        data += piece


def to_json(filter: BodyFilter) -> str:
    return json.dumps(
        {
            "kind": filter.kind,
            "capacity": filter.capacity,
            "error_rate": filter.error_rate,
            "frame": base64.b64encode(to_bytes(filter)).decode(),
        }
    )


def from_json(cls: type[F], text: str | bytes, secret: bytes) -> F:
    try:
        data = json.loads(text)
        frame = base64.b64decode(data["frame"], validate=True)
        told = {name: data[name] for name in ("kind", "capacity", "error_rate")}
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise CorruptFilter(f"not the JSON form of a filter: {error!r}") from error
    filter = from_bytes(cls, frame, secret)
    held = {"kind": filter.kind, "capacity": filter.capacity, "error_rate": filter.error_rate}
    if told != held:
        raise CorruptFilter(f"the JSON tells of {told}, its frame of {held}")
    return filter
