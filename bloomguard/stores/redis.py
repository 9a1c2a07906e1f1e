"""A store for many hosts: shards as keys of one Redis or Valkey server, the same bytes as in a file.

    bloomguard:{guard}                         a hash: generation -> number of its shards
    bloomguard:{guard}:{generation}:{shard}    a frame of bloomguard.filters.codec

A check is one ``BITFIELD`` that reads both tags of a shard and the key's bits at once: a key that was evicted, flushed
or never written answers with tags of 0, a replica refuses the command. An add is the same with ``SET``, and counts
only if the tags in the reply are right. Bit commands cannot keep a checksum up to date, so frames lie here with the
mark of an unfinished write, which says that the checksum does not count.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar

import redis
from django.core.checks import CheckMessage, Warning

from ..exceptions import ConfigurationError, StoreError, StoreUnavailable, UnknownGeneration
from ..filters import CorruptFilter
from ..filters.base import BodyFilter
from ..filters.codec import FIXED_BYTES, TAG_OFFSET, Frame, Header, header_bytes
from ..filters.layout import Layout
from ..forks import after_fork
from .base import FindKeyHash, Generation, Store
from .breaker import Breaker
from .redis_link import Command, Link

if TYPE_CHECKING:
    from ..filters.base import Keys

_PIECE = 1 << 18  # bytes a command carries in bulk: other clients wait some 5 ms for it
_STEP = 1 << 20  # bytes of zeros a new key grows by at once
_HEADERS = 256  # read in one trip
_BITS = 2_000  # set or read by one command
_TAG_BYTES = 8
_WORDS = 8  # of a command that reads the two tags
_IDENTITY_SECONDS = 0.25
_LONGEST_PATIENCE = 0.5  # seconds that a request may wait without a warning


class RedisStore(Store):
    """Generations in one Redis or Valkey server: that of the django-redis cache ``cache``, or the one at ``url``.

    Of the cache only the address and the login are used. ``connect_timeout`` and ``read_timeout`` are seconds that a
    request may wait; ``add_timeout`` is for adds, since one that fails takes the filter out of service until it is
    rebuilt; ``bulk_timeout`` is for rebuilds. Sites that share a server need a ``prefix`` each.
    """

    waits: ClassVar[bool] = True
    shard_bytes: ClassVar[int] = 8 << 20  # BITOP holds up everybody else for 1.5 ms a MiB

    def __init__(
        self,
        alias: str,
        *,
        url: str | None = None,
        cache: str | None = None,
        prefix: str = "bloomguard",
        connect_timeout: float = 0.05,
        read_timeout: float = 0.05,
        add_timeout: float = 0.5,
        bulk_timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(alias)
        if (url is None) == (cache is None):
            raise ConfigurationError(
                f"the store {alias!r} needs either url, as in 'redis://host:6379/0', or cache, the alias of a "
                f"django-redis cache; url is {'given' if url else 'missing'} and cache is {cache!r}"
            )
        pool = _pool_of_cache(alias, cache) if cache is not None else _pool_of_url(alias, str(url))
        self.prefix = prefix
        self._clock = clock
        self._patience = connect_timeout + read_timeout
        self._reads = Link(pool, connect_timeout, read_timeout, clock)
        self._adds = Link(pool, connect_timeout, add_timeout, clock)
        self._bulk = Link(pool, bulk_timeout, bulk_timeout, clock)
        self._identity = ("", float("-inf"))
        self.breaker = Breaker(clock)
        #: How often a read got no answer, by reason.
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    # -- trips

    def read(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Ask on behalf of a request, with its short timeouts; raises :class:`StoreError`.

        While the circuit breaker is open, :class:`StoreUnavailable` comes at once.
        """
        if not self.breaker.allows():
            self._count("breaker")
            raise StoreUnavailable("the server did not answer lately", "breaker")
        try:
            found, replies = self._reads.trip(commands, identity)
        except StoreUnavailable as error:
            self._count(error.reason)
            self.breaker.failed()
            raise
        except StoreError:
            self.breaker.succeeded()
            raise
        self.breaker.succeeded()
        self._identity = found, self._clock()
        return replies

    def write(self, commands: Sequence[Command], identity: str) -> list[Any]:
        """Add, with or without the breaker's leave: whoever adds has to know. Raises :class:`StoreError`."""
        return self._adds.trip(commands, identity)[1]

    def load(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """What builders do, with patience; raises :class:`StoreError`."""
        return self._bulk.trip(commands, identity)[1]

    def _count(self, reason: str) -> None:
        with self._lock:
            self.failures[reason] += 1

    # -- the store

    @property
    def identity(self) -> str:
        """The server's replication id and run id, as they were a moment ago; another server has others.

        Raises :class:`StoreError` if it does not answer.
        """
        known, at = self._identity
        if self._clock() - at >= _IDENTITY_SECONDS:
            self.read([("PING",)])
            known = self._identity[0]
        return known

    def key(self, guard: str, name: str, shard: int) -> str:
        """The server's key of one shard."""
        return f"{self.prefix}:{guard}:{name}:{shard}"

    def loading_key(self, guard: str, name: str, shard: int) -> str:
        """Where a shard's bits are gathered; in a Cluster the braces put it beside the shard itself."""
        return f"{{{self.key(guard, name, shard)}}}:load"

    def create(self, guard: str, name: str, layout: Layout) -> Generation:
        if not layout.filter_class.plain_bits:
            raise StoreError(
                f"the store {self.alias!r} holds Bloom filters and exact bitmaps, no {layout.kind} filters; "
                "set the guard's filter to 'auto', or its store to one of files"
            )
        identity, _ = self._bulk.trip([("HSET", f"{self.prefix}:{guard}", name, len(layout.headers))])
        made = RedisGeneration(self, guard, name, layout, identity, draft=_Draft(layout))
        try:
            made.make()
        except StoreError as error:
            with suppress(StoreError):
                self.drop(guard, name)
            raise StoreError(f"no filter of {layout.total_bytes:,} bytes was made: {error}") from error
        return made

    def open(self, guard: str, name: str, find_key_hash: FindKeyHash, identity: str | None = None) -> Generation:
        identity = identity or self.identity
        key = self.key(guard, name, 0)
        start, size = self.read([("GETRANGE", key, 0, 1023), ("STRLEN", key)], identity)
        if not size:
            raise UnknownGeneration(f"{key} is not there")
        if len(start) < FIXED_BYTES:
            raise CorruptFilter(f"{key} has {size} bytes, too few for a filter")
        header = Header.unpack(start[: header_bytes(start)])
        layout = self._layout(name, header, size * header.shards, find_key_hash)
        if not layout.filter_class.plain_bits:
            raise CorruptFilter(f"{key} is a {layout.kind} filter, which bit commands cannot read")
        opened = RedisGeneration(self, guard, name, layout, identity)
        opened.check_headers()
        return opened

    def drop(self, guard: str, name: str) -> None:
        listed = f"{self.prefix}:{guard}"
        (shards,) = self.load([("HGET", listed, name)])
        for shard in range(int(shards or 0)):
            self.load([("UNLINK", self.key(guard, name, shard), self.loading_key(guard, name, shard))])
        self.load([("HDEL", listed, name)])

    def names(self, guard: str) -> list[str]:
        # A hash of our own: SCAN would walk through everything else that the server holds.
        return [name.decode() for name in self.read([("HKEYS", f"{self.prefix}:{guard}")])[0]]

    def free_bytes(self) -> int | None:
        figures = _figures(self.load([("INFO", "memory")])[0])
        most, used = int(figures.get("maxmemory", 0)), int(figures.get("used_memory", 0))
        return max(most - used, 0) if most else None

    def check(self) -> list[CheckMessage]:
        if self._patience <= _LONGEST_PATIENCE:
            return []
        return [
            Warning(
                f"the store {self.alias!r} lets a request wait {self._patience:g} s for a server that is gone.",
                hint="Its connect_timeout and read_timeout are seconds; 0.05 each are plenty within a data centre.",
                id="bloomguard.W020",
            )
        ]

    def check_deployed(self) -> list[CheckMessage]:
        try:
            memory = _figures(self.load([("INFO", "memory")])[0])
        except StoreError as error:
            return [
                Warning(
                    f"the store {self.alias!r} does not answer: {error}.",
                    hint="Until it does, no request is answered by a guard, and saves take their guards out of use.",
                    id="bloomguard.W021",
                )
            ]
        policy = memory.get("maxmemory_policy", "")
        if policy != "noeviction" and not policy.startswith("volatile-"):
            return [
                Warning(
                    f"the server of the store {self.alias!r} may evict filters: its maxmemory-policy is {policy!r}.",
                    hint="Set it to noeviction, or to one of volatile-*: filters have no expiry. An evicted filter "
                    "lets every request pass until rebuild_filter has run.",
                    id="bloomguard.W022",
                )
            ]
        return []

    def close(self) -> None:
        """Hang up; the next command connects anew."""
        for link in (self._reads, self._adds, self._bulk):
            link.close()


class RedisGeneration(Generation):
    """A generation on a server. What the process that makes it adds in bulk stays in ``draft`` until it is sealed."""

    def __init__(
        self,
        store: RedisStore,
        guard: str,
        name: str,
        layout: Layout,
        identity: str,
        draft: _Draft | None = None,
    ) -> None:
        self.name = name
        self.layout = layout
        self._store = store
        self._guard = guard
        self._identity = identity
        self._keys = [store.key(guard, name, shard) for shard in range(len(layout.headers))]
        self._body_bit = 8 * layout.headers[0].body_offset
        tags = ("GET", "u63", 8 * TAG_OFFSET, "GET", "u63", 8 * (layout.frame_bytes - _TAG_BYTES))
        self._starts = [_words("BITFIELD", key, *tags) for key in self._keys]
        self._draft = draft
        self._sealed = draft is None
        self._positions: Callable[[int], list[int]] = layout.shape.positions  # type: ignore[attr-defined]
        self.might_contain = self._might_contain

    # -- asking and adding

    def _might_contain(self, key: bytes) -> bool:
        shard, digest = self.layout.locate(key)
        (reply,) = self._store.read([self._bitfield(shard, _GET, self._positions(digest))], self._identity)
        self._prove(shard, reply)
        return 0 not in reply or (not self._sealed and self._draft is not None and self._draft.might_contain(key))

    def might_contain_many(self, keys: Iterable[bytes]) -> list[bool]:
        """All in one trip, a command for some hundred keys of a shard."""
        keys = list(keys)
        if not self._sealed:
            return super().might_contain_many(keys)
        placed: dict[int, tuple[list[int], list[int]]] = {}  # by shard: which keys, and their bits
        for number, (shard, digest) in enumerate(map(self.layout.locate, keys)):
            numbers, positions = placed.setdefault(shard, ([], []))
            bits = self._positions(digest)
            numbers += [number] * len(bits)
            positions += bits
        commands, asked = [], []
        for shard, (numbers, positions) in placed.items():
            for start in range(0, len(positions), _BITS):
                commands.append(self._bitfield(shard, _GET, positions[start : start + _BITS]))
                asked.append((shard, numbers[start : start + _BITS]))
        found = [True] * len(keys)
        replies = self._store.read(commands, self._identity) if commands else []
        for (shard, numbers), reply in zip(asked, replies):
            self._prove(shard, reply)
            for number, bit in zip(numbers, reply[2:]):
                if not bit:
                    found[number] = False
        return found

    def _bitfield(self, shard: int, each: tuple[int, str, str], positions: Sequence[int] = ()) -> bytes:
        """One command that reads both tags of a shard, and reads or sets bits, as it goes over the wire.

        Put together here, in a third of the time that a client takes for any command.
        """
        words, before, after = each
        first = self._body_bit
        places = [str(first + position) for position in positions]
        bits = "".join([f"{before}${len(place)}\r\n{place}\r\n{after}" for place in places])
        return f"*{_WORDS + words * len(places)}\r\n{self._starts[shard]}{bits}".encode()

    def add(self, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        placed: dict[int, list[int]] = {}
        for shard, digest in map(self.layout.locate, keys):
            placed.setdefault(shard, []).extend(self._positions(digest))
        if placed:
            self._set(placed)
        if self._draft is not None:
            self._draft.add(keys)

    def add_many(self, keys: Keys, *, more: bool = False) -> None:
        if self._draft is not None:
            self._draft.add_many(keys)
            if not self._sealed:
                return
        for shard, low, high in self.layout.locate_many(keys):
            digests = (low.astype(object) | high.astype(object) << 64).tolist()
            self._set({shard: [position for digest in digests for position in self._positions(digest)]})

    def _set(self, placed: dict[int, list[int]]) -> None:
        """Set bits, by shard, in one trip; they are set if the tags say that the shard is whole."""
        commands, shards = [], []
        for shard, positions in placed.items():
            for start in range(0, len(positions), _BITS):
                commands.append(self._bitfield(shard, _SET, positions[start : start + _BITS]))
                shards.append(shard)
        for shard, reply in zip(shards, self._store.write(commands, self._identity)):
            self._prove(shard, reply)

    def _prove(self, shard: int, reply: Any) -> None:
        tag = self.layout.tag
        if reply[0] != tag or reply[1] != tag:
            raise CorruptFilter(f"{self._keys[shard]} is gone, or no longer what it was: evicted, flushed or deleted?")

    # -- making

    def make(self) -> None:
        """Make the shards, empty: zeros first, then the trailer, the header last. Raises :class:`StoreError`."""
        assert self._draft is not None
        for key, frame in zip(self._keys, self._draft.frames):
            size = len(frame.buffer)
            for end in range(_STEP, size, _STEP):
                self._load(("SETRANGE", key, end - 1, b"\0"))
            self._load(("SETRANGE", key, size - 16, bytes(frame.buffer[-16:])))
            self._load(("SETRANGE", key, 0, bytes(frame.buffer[: frame.header.body_offset])))

    def seal(self) -> None:
        """Bring the draft's bits to the server, beside those that others have set there meanwhile."""
        if self._draft is None or self._sealed:
            return
        for shard, frame in enumerate(self._draft.frames):
            self._merge(shard, frame)
        self._sealed = True

    def _merge(self, shard: int, frame: Frame) -> None:
        key, gathered = self._keys[shard], self._store.loading_key(self._guard, self.name, shard)
        start, body = frame.header.body_offset, frame.body
        # No header and no trailer: a shard that vanished in between must not come back whole by this.
        self._load(("UNLINK", gathered), ("SETRANGE", gathered, start - 1, b"\0"))
        for at in range(0, len(body), _PIECE):
            (size,) = self._load(("APPEND", gathered, bytes(body[at : at + _PIECE])))
        if size != start + len(body):
            raise StoreError(f"{gathered} has {size:,} bytes where {start + len(body):,} were sent")
        joined, _, tags = self._load(
            ("BITOP", "OR", key, key, gathered), ("UNLINK", gathered), self._bitfield(shard, _GET)
        )
        self._prove(shard, tags)
        if joined != len(frame.buffer):
            raise CorruptFilter(f"{key} has {joined:,} bytes; its header tells of {len(frame.buffer):,}")

    def _load(self, *commands: Command) -> list[Any]:
        return self._store.load(commands, self._identity)

    # -- looking at all of it

    def check_headers(self) -> None:
        """Hold every shard's header and size against the layout; raises :class:`CorruptFilter`."""
        headers = self.layout.headers
        for start in range(0, len(headers), _HEADERS):
            some = list(zip(self._keys, headers))[start : start + _HEADERS]
            heads = [("GETRANGE", key, 0, header.body_offset - 1) for key, header in some]
            sizes = [("STRLEN", key) for key, _ in some]
            replies = self._store.read([*heads, *sizes], self._identity)
            for (key, header), head, size in zip(some, replies, replies[len(some) :]):
                if head != header.pack() or size != header.frame_bytes:
                    raise CorruptFilter(f"{key} belongs to another build, or is not whole")

    def frame(self, shard: int) -> Frame:
        """A copy of one shard, checksummed; raises :class:`CorruptFilter` or :class:`StoreError`."""
        key, size = self._keys[shard], self.layout.frame_bytes
        buffer = memoryview(bytearray(size))
        for start in range(0, size, _PIECE):
            end = min(start + _PIECE, size)
            (piece,) = self._load(("GETRANGE", key, start, end - 1))
            if len(piece) != end - start:
                raise CorruptFilter(f"{key} is not whole: {len(piece):,} bytes where {end - start:,} were expected")
            buffer[start:end] = piece
        frame = Frame.open(buffer)
        if frame.header != self.layout.headers[shard]:
            raise CorruptFilter(f"{key} belongs to another build")
        frame.seal()
        return frame

    def filters(self) -> Iterator[BodyFilter]:
        if self._draft is not None:
            yield from self._draft.filters
            return
        for shard in range(len(self._keys)):
            yield self.layout.attach(self.frame(shard))

    def fill(self) -> float:
        return mean(each.fill for each in self.filters())

    def measure_error_rate(self, probes: int = 100_000) -> float:
        share = -(-probes // len(self._keys))
        return mean(each.measure_error_rate(share) for each in self.filters())


class _Draft:
    """The frames of a new generation on the heap of the process that builds it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.frames = [Frame.format(header, memoryview(bytearray(header.frame_bytes))) for header in layout.headers]
        for frame in self.frames:
            frame.begin()  # as frames lie on a server
        self.filters = [layout.attach(frame) for frame in self.frames]
        self.might_contain = layout.checker(self.filters)

    def add(self, keys: Iterable[bytes]) -> None:
        for shard, digest in map(self._layout.locate, keys):
            attached = self.filters[shard]
            attached._apply(attached.writes(digest))

    def add_many(self, keys: Keys) -> None:
        for shard, low, high in self._layout.locate_many(keys):
            self.filters[shard].add_digests(low, high)


def _figures(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def _words(*words: object) -> str:
    """Words of a command as they go over the wire."""
    return "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in map(str, words))


#: For each bit of a ``BITFIELD``: how many words there are, those before its position, and those after it.
_GET = (3, _words("GET", "u1"), "")
_SET = (4, _words("SET", "u1"), _words(1))


def _pool_of_url(alias: str, url: str) -> redis.ConnectionPool:
    try:
        return redis.ConnectionPool.from_url(url)
    except ValueError as error:
        raise ConfigurationError(f"the store {alias!r}: its url is none of a Redis server: {error}") from error


def _pool_of_cache(alias: str, cache: str) -> redis.ConnectionPool:
    from django.core.cache import InvalidCacheBackendError
    from django_redis import get_redis_connection

    try:
        pool: redis.ConnectionPool = get_redis_connection(cache).connection_pool
    except (InvalidCacheBackendError, NotImplementedError, AttributeError) as error:
        raise ConfigurationError(f"the store {alias!r}: CACHES[{cache!r}] is no cache of django-redis") from error
    if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
        raise ConfigurationError(
            f"the store {alias!r}: CACHES[{cache!r}] uses a {type(pool).__name__}; only a single server can hold "
            "filters: give its address by url"
        )
    return pool
