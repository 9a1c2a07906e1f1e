"""A generation in buffers that this process can reach, on the heap or in a mapped file: one frame a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import mean
from typing import TYPE_CHECKING, Any

from ..exceptions import StoreError
from ..filters import CorruptFilter, FilterError
from ..filters.base import BodyFilter
from ..filters.codec import Frame
from ..filters.layout import Layout
from .base import Adds, Generation

if TYPE_CHECKING:
    from ..filters.base import U64, Keys

# Adding one key takes 6 us a shard that gets any; several at once, where bits are all that is set, 150 us a shard and
# 0.5 us each. In bulk a key costs a tenth of that, and then there is a pass over each shard for its checksum.
_SEVERAL_KEYS = 32
_MANY_KEYS = 256
_BYTES_A_KEY = {True: 256, False: 16_384}  # by whether several at once is a way
# Keys that are written or discarded under one lock: others wait for some 5 ms.
_WRITTEN_AT_ONCE = 8_192
_DISCARDED_AT_ONCE = 256


#: Of each key the shard that it belongs to, and its digest.
Places = list[tuple[Frame, BodyFilter, int]]


class FrameGeneration(Generation):
    """``locked(exclusive)`` keeps other writers out, in this process and all others; readers of bits take no lock."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        buffers: Sequence[memoryview],
        locked: Callable[[bool], AbstractContextManager[Any]],
    ) -> None:
        self.name = name
        self.layout = layout
        self._buffers = buffers
        self._locked = locked
        self._frames: list[Frame | None] = [None] * len(buffers)
        self._filters: list[BodyFilter | None] = [None] * len(buffers)
        plain = layout.filter_class.plain_bits
        self._many = max(_MANY_KEYS, layout.total_bytes // _BYTES_A_KEY[plain])
        self._several = _SEVERAL_KEYS * len(buffers) if plain else self._many
        self.might_contain = self._might_contain
        if len(buffers) == 1:
            self._shard(0)

    def _shard(self, index: int) -> tuple[Frame, BodyFilter]:
        """The frame and the filter of one shard, checked whole when first asked for."""
        frame, attached = self._frames[index], self._filters[index]
        if frame is None or attached is None:
            frame = Frame.open(self._buffers[index])
            if frame.header != self.layout.headers[index]:
                raise CorruptFilter(f"shard {index} of generation {self.name} belongs to another build")
            with self._locked(False):
                frame.verify()
            attached = self.layout.attach(frame)
            self._frames[index], self._filters[index] = frame, attached
            filters = [known for known in self._filters if known is not None]
            if len(filters) == len(self._filters):
                self.might_contain = self.layout.checker(filters)
        return frame, attached

    def _might_contain(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        return self._shard(shard)[1].might_contain_digest(digest)

    def add(self, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        if len(keys) >= self._many:
            for frame, attached, low, high in self._placed(keys):
                with self._changing(frame, False):
                    attached.add_digests(low, high)
                self._see(attached, low, high)
        elif len(keys) >= self._several:
            for start in range(0, len(keys), _WRITTEN_AT_ONCE):
                self._add_several(keys[start : start + _WRITTEN_AT_ONCE])
        else:
            places = self._places(keys)
            with self._locked(True):
                self._write(places)

    def _add_several(self, keys: Sequence[bytes]) -> None:
        placed = list(self._placed(keys))
        with self._locked(True):
            for frame, attached, low, _ in placed:
                frame.write_bits(attached.layout.positions_many(low))
        for _, attached, low, high in placed:
            self._see(attached, low, high)

    @classmethod
    def add_to_all(cls, adds: Sequence[Adds]) -> list[Exception | None]:
        """See :meth:`Generation.add_to_all`: under one lock where all of them share it."""
        mine: list[tuple[FrameGeneration, Sequence[bytes]]] = adds  # type: ignore[assignment]
        locked = mine[0][0]._locked
        if any(each._locked != locked or len(keys) >= each._several for each, keys in mine):
            return super().add_to_all(adds)
        outcomes: list[Exception | None] = []
        try:
            places = [_outcome(each._places, keys) for each, keys in mine]
            with locked(True):
                for (each, _), found in zip(mine, places):
                    outcomes.append(found if isinstance(found, Exception) else _outcome(each._write, found))
        except StoreError as error:  # the lock was not to be had
            return [error] * len(adds)
        return outcomes

    def _places(self, keys: Iterable[bytes]) -> Places:
        return [(*self._shard(shard), digest) for shard, digest in map(self.layout.locate, keys)]

    def _write(self, places: Places) -> None:
        for frame, attached, digest in places:
            frame.write(attached.writes(digest))
            if not attached.might_contain_digest(digest):
                raise CorruptFilter(self._lost)

    @property
    def _lost(self) -> str:
        return f"generation {self.name} did not keep what was written"

    def add_many(self, keys: Keys, *, more: bool = False) -> None:
        if len(self._buffers) == 1:
            frame, attached = self._shard(0)
            with self._changing(frame, more):
                attached.add_many(keys)  # which makes no more of the digests than its kind needs
            return
        for index, low, high in self.layout.locate_many(keys):
            frame, attached = self._shard(index)
            with self._changing(frame, more):
                attached.add_digests(low, high)

    def discard(self, keys: Iterable[bytes]) -> None:
        places = self._places(keys)
        for start in range(0, len(places), _DISCARDED_AT_ONCE):
            with self._locked(True):
                for frame, attached, digest in places[start : start + _DISCARDED_AT_ONCE]:
                    frame.write(attached.discard_writes(digest))

    @contextmanager
    def _changing(self, frame: Frame, more: bool) -> Iterator[None]:
        with self._locked(True):  # other writers wait meanwhile
            frame.begin()
            yield
            if not more:
                frame.seal()

    def seal(self) -> None:
        for frame in self._frames:
            if frame is not None and frame.dirty:
                with self._locked(True):
                    frame.seal()

    def read_shard(self, shard: int) -> Frame:
        frame, _ = self._shard(shard)
        with self._locked(False):
            copied = Frame.open(memoryview(bytearray(frame.buffer)))
        copied.verify()
        return copied

    def merge(self, shard: int, body: memoryview) -> int:
        import numpy as np

        frame, _ = self._shard(shard)
        mine, theirs = np.frombuffer(frame.body, np.uint8), np.frombuffer(body, np.uint8)
        with self._locked(True):
            missing = int(np.bitwise_count(theirs & ~mine).sum())
            if missing:
                frame.begin()
                mine |= theirs
                frame.seal()
        return missing

    def _placed(self, keys: Keys) -> Iterator[tuple[Frame, BodyFilter, U64, U64]]:
        """Each shard that has any of the keys, checked whole, and their digests."""
        for index, low, high in self.layout.locate_many(keys):
            yield *self._shard(index), low, high

    def _see(self, attached: BodyFilter, low: U64, high: U64) -> None:
        if not attached.contains_digests(low, high).all():
            raise CorruptFilter(self._lost)

    def filters(self) -> list[BodyFilter]:
        return [self._shard(index)[1] for index in range(len(self._buffers))]

    def fill(self) -> float:
        return mean(attached.fill for attached in self.filters())

    def measure_error_rate(self, probes: int = 100_000) -> float:
        each = -(-probes // len(self._buffers))
        return mean(attached.measure_error_rate(each) for attached in self.filters())


def _outcome(function: Callable[[Any], Any], argument: Any) -> Any:
    """What it returns, or raises."""
    try:
        return function(argument)
    except (FilterError, StoreError) as error:
        return error
