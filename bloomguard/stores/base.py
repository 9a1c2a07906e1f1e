"""What every store offers: generations, each one complete build of one guard's filter.

A generation is never created by an add and never half seen: a shard whose two tags are not the expected ones, or
whose body does not fit its checksum, is not trusted. **Missing is not empty.**
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar

from django.core.checks import CheckMessage

from ..exceptions import StoreError, UnknownGeneration
from ..filters import CorruptFilter, DiscardUnsupported, FilterError, KeyHash
from ..filters.codec import Frame, Header
from ..filters.layout import SHARD_BYTES, Layout
from .pages import Page

if TYPE_CHECKING:
    from ..filters.base import BodyFilter, Keys

#: Given a header's key id, how its keys are hashed; ``None`` where no secret and definition of today's fits.
FindKeyHash = Callable[[int], KeyHash | None]

#: Between a guard's name and what lies in a store beside its filters: no guard can be called so.
BESIDE = "+"

#: A generation, and the keys that are to be put into it.
Adds = tuple["Generation", Sequence[bytes]]


def bound(layout: Layout, guard: str, name: str, place: str = "") -> Layout:
    """``layout`` with the one tag that the generation ``name`` of ``guard`` has at ``place``.

    A file or a key of another guard, of another generation, or a copy of this one that lies elsewhere does not have it.
    Nobody who does not know the secret can make a header that has it.
    """
    tag = _tag(layout.headers[0], layout.key_hash, guard, name, place)
    return replace(layout, tag=tag, headers=tuple(replace(header, tag=tag) for header in layout.headers))


def _tag(header: Header, key_hash: KeyHash, guard: str, name: str, place: str) -> int:
    told = blake2b(replace(header, tag=0).pack(), key=key_hash.secret, digest_size=8, person=b"bloomguard tag")
    told.update(f"{guard}\0{name}\0{place}".encode())
    return int.from_bytes(told.digest(), "big") >> 1 or 1  # never 0: a missing key of a server reads as 0


def owner(place: str) -> str:
    """The guard that a place in a store belongs to."""
    return place.partition(BESIDE)[0]


class Generation(ABC):
    """One complete build of one guard's filter, in the shards that ``layout`` describes."""

    name: str
    layout: Layout
    #: Whether an event loop can await :meth:`amight_contain`; if not, a check that waits is made in a thread.
    awaits: bool = False
    #: ``might_contain(key: bytes) -> bool``; raises :class:`CorruptFilter` where a shard cannot be trusted, and
    #: :class:`StoreError` where the store does not answer.
    might_contain: Callable[[bytes], bool]

    def might_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        """:attr:`might_contain` of each key, in their order; raises what it raises."""
        return [self.might_contain(key) for key in keys]

    async def amight_contain(self, key: bytes) -> bool:
        """:attr:`might_contain` on an event loop, which one that :attr:`awaits` does not hold up."""
        return self.might_contain(key)

    async def amight_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        """:meth:`might_contain_many`, likewise."""
        return self.might_contain_many(keys)

    @abstractmethod
    def add(self, keys: Iterable[bytes]) -> None:
        """Put keys in and see that they are; raises :class:`CorruptFilter` or :class:`StoreError` if that fails.

        A kind that can discard counts: what is put in twice is there twice, and has to be discarded twice.
        """

    @classmethod
    def add_to_all(cls, adds: Sequence[Adds]) -> list[Exception | None]:
        """Put keys into several generations of one store: for each what :meth:`add` would raise, if anything."""
        outcomes: list[Exception | None] = []
        for generation, keys in adds:
            try:
                generation.add(keys)
                outcomes.append(None)
            except (FilterError, StoreError) as error:
                outcomes.append(error)
        return outcomes

    @abstractmethod
    def add_many(self, keys: Keys, *, more: bool = False) -> None:
        """Put many keys in, in whatever form :meth:`KeyHash.digests` takes.

        With ``more`` to come before :meth:`seal`, what costs a pass over all bytes may be left to that.

        Into a generation that this process has made they may go only when it is sealed.
        """

    def discard(self, keys: Iterable[bytes]) -> None:
        """Take each key out once; one that is saturated, or not there, leaves the generation as it is.

        Never to be tried again: an attempt that failed may have taken something out. Raises
        :class:`DiscardUnsupported`, :class:`CorruptFilter` or :class:`StoreError`.
        """
        raise DiscardUnsupported(
            f"generation {self.name} is a {self.layout.kind} filter, of which nothing is taken out"
        )

    @abstractmethod
    def filters(self) -> Iterable[BodyFilter]:
        """The filter of each shard, in their order: the very ones, or copies of what a server holds now.

        Raises :class:`CorruptFilter` or :class:`StoreError`.
        """

    def approximate_size(self) -> int:
        """The number of keys in it, as near as its kind can tell; raises what :meth:`filters` raises."""
        return sum(each.approximate_size() for each in self.filters())

    @abstractmethod
    def fill(self) -> float:
        """Share of the bits or slots in use, over all shards, 0 to 1."""

    @abstractmethod
    def measure_error_rate(self, probes: int = 100_000) -> float:
        """The share of random keys that the generation lets through, probed evenly over the shards."""

    @abstractmethod
    def read_shard(self, shard: int) -> Frame:
        """A copy of one shard, held against its checksum; raises :class:`CorruptFilter` or :class:`StoreError`."""

    @abstractmethod
    def merge(self, shard: int, body: memoryview) -> int:
        """Set every bit that is set in ``body``, the same shard of a twin; returns how many were missing here.

        For kinds of ``plain_bits``. Raises :class:`CorruptFilter` or :class:`StoreError`.
        """

    def seal(self) -> None:  # noqa: B027
        """Make it complete and durable; called once, before it is published. Raises :class:`StoreError`."""


class Store(ABC):
    """Where generations live. ``OPTIONS`` of the setting arrive as keyword arguments."""

    #: Whether a check waits for a network: an event loop must not make one.
    waits: ClassVar[bool] = False
    #: The most bytes that one shard of a new generation takes here.
    shard_bytes: int = SHARD_BYTES

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names this store and this life of it, at most 200 characters; another store or another life gives another.

        Raises :class:`StoreError` if the store cannot say.
        """

    @abstractmethod
    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        """Make an empty generation with its own tag; raises :class:`StoreError` with the figures if it does not fit."""

    @abstractmethod
    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        """Open a generation; raises :class:`UnknownGeneration`, :class:`CorruptFilter` or :class:`StoreError`.

        ``identity`` is what the caller trusts, by default what the store says now: where the server behind a store can
        change while a generation is open, no answer of another one is believed.
        """

    @abstractmethod
    def drop(self, guard: str, name: str) -> None:
        """Free a generation; nothing happens if it is gone already. Raises :class:`StoreError` if it will not go."""

    @abstractmethod
    def names(self, guard: str) -> list[str]:
        """The generations that lie here, finished or not."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Bytes that a new generation could take, ``None`` where nobody can tell."""

    # Figures are kept beside the filters. A store that keeps none serves its guards as well.

    def add_figures(self, page: Page, cells: Mapping[int, int]) -> None:  # noqa: B027
        """Add numbers to cells of a page, which is made where it is missing. Raises :class:`StoreError`."""

    def read_figures(self, pages: Sequence[Page]) -> list[bytes]:
        """The pages as they are, nothing in place of one that is not there. Raises :class:`StoreError`."""
        return [b""] * len(pages)

    def check(self) -> list[CheckMessage]:
        """System check messages about the store's own options."""
        return []

    def check_deployed(self) -> list[CheckMessage]:
        """What can be told only by asking a server, for ``check --deploy``."""
        return []

    def _layout(
        self, guard: str, name: str, place: str, header: Header, size: int, find_key_hash: FindKeyHash
    ) -> Layout:
        if header.frame_bytes * header.shards != size:  # before anything is made by the header's word
            raise CorruptFilter(
                f"generation {name} has {size:,} bytes; its header tells of {header.shards} x {header.frame_bytes:,}"
            )
        key_hash = find_key_hash(header.key_id)
        if key_hash is None:
            raise UnknownGeneration(
                f"generation {name} was built with another SECRET_KEY, or for another definition of its guard"
            )
        if header.tag != _tag(header, key_hash, guard, name, place):
            raise CorruptFilter(
                f"what lies in the place of generation {name} of {guard} was made as another one, or is a copy of it"
            )
        return Layout.of(header, key_hash)
