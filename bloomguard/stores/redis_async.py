"""Connections of event loops to Redis or Valkey servers: the twins of :class:`.Link` and :class:`.ClusterLink`.

Every loop has a pool of its own. A task that is cancelled, or loses patience, hangs up: a reply that is still to come
would be taken for the next command's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ..exceptions import StoreUnavailable
from ..steps import arun
from .loops import PerLoop
from .redis_cluster import Address, Answer, Ask, Cluster
from .redis_exchange import FAULTS, Command, Exchange, Proof, Server, connection_options, is_demoted, judge

Pool = Callable[..., redis.asyncio.ConnectionPool]

#: Of one loop to one server: more would not be faster, and a flood of requests must not become one of connections.
_MOST_LINES = 16
#: A loop that was held up may have a reply in its hands and not have read it yet: it gets so many seconds for that.
_GRACE = 0.001


class _Lines(NamedTuple):
    """The connections of one loop: at most as many are in use as ``free`` lets through."""

    pool: Any
    free: asyncio.Semaphore


class AsyncLink:
    """What :class:`.Link` is for threads: ``server`` is shared with that one, and so are its breaker and its identity.

    Nobody waits longer than ``timeout`` seconds for a connection to be free, which at most 16 tasks use at once.
    """

    def __init__(
        self, server: Server, make_pool: Pool, options: dict[str, Any], connect_timeout: float, timeout: float
    ) -> None:
        kwargs = connection_options(options, connect_timeout, timeout, Retry(NoBackoff(), 0))
        self._kwargs = kwargs | {"redis_connect_func": self._connected}
        self._make_pool = make_pool
        self._timeout = timeout
        self._lines = PerLoop(self._open, self._close)
        self.server = server

    async def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """See :meth:`Link.trip`."""
        _, replies = await self.proved(commands, identity)
        return replies

    async def proved(self, commands: Sequence[Command], identity: str | None = None) -> Answer:
        """Who answered, and the replies; raises what :meth:`trip` raises."""
        try:
            proof, replies = await self._exchange(commands)
        except FAULTS as error:
            raise self.server.failed(error) from error
        return proof.identity, judge(self.server, proof, replies, identity)

    async def _exchange(self, commands: Sequence[Command]) -> tuple[Proof, list[Any]]:
        lines = await self._lines.here()
        await self._wait_for_turn(lines.free)
        try:
            self.server.check()
            # Not by `get_connection`, which in older versions of redis-py makes one connection after the other.
            connection = lines.pool.get_available_connection()
            try:
                if connection.is_connected and connection._writer.is_closing():
                    await connection.disconnect(nowait=True)  # it was reset, which the pool does not see
                await self._connect(lines.pool, connection)
                return await self._talk(connection, commands)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                await lines.pool.release(connection)
        finally:
            lines.free.release()

    async def _connect(self, pool: Any, connection: Any) -> None:
        """Connect, unless it is; of the server a loop that was held up meanwhile says nothing."""
        if connection.is_connected:
            await pool.ensure_connection(connection)
            return
        with _Pulse(self._timeout) as pulse:
            try:
                await pool.ensure_connection(connection)
            except redis.TimeoutError as error:
                if pulse.missed:
                    raise StoreUnavailable("the event loop was held up while it connected", "timeout") from error
                raise

    async def _wait_for_turn(self, free: asyncio.Semaphore) -> None:
        if not free.locked():
            await free.acquire()
            return
        try:
            await asyncio.wait_for(free.acquire(), self._timeout)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise StoreUnavailable("too many tasks ask at once", "crowded") from None

    async def _talk(self, connection: Any, commands: Sequence[Command]) -> tuple[Proof, list[Any]]:
        replies: list[Any] = []
        with _Patience(connection, self._timeout) as patience:
            exchange = Exchange(self.server, connection, commands)
            await connection.send_packed_command(exchange.pieces)
            for _ in range(exchange.expected):
                replies.append(await _reply(connection))
                patience.renew()
        read = exchange.read(replies)
        if is_demoted(read[1]):
            await connection.disconnect(nowait=True)
        return read

    async def _connected(self, connection: Any) -> None:
        """Log in as the settings say, then ask who is there."""
        connection.socket_timeout = self._timeout
        try:
            await connection.on_connect()
            asked, greeting = self.server.clock(), self.server.greeting
            await connection.send_packed_command(connection.pack_commands(greeting))
            replies = [await connection.read_response() for _ in greeting]
            connection.bloomguard = self.server.introduced(replies, asked)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        connection.socket_timeout = None  # from now on there is _Patience, which knows of a loop that was held up

    def _open(self) -> _Lines:
        return _Lines(self._make_pool(**self._kwargs), asyncio.Semaphore(_MOST_LINES))

    @staticmethod
    async def _close(lines: _Lines) -> None:
        watchers: Any = getattr(lines.pool, "sentinel_manager", None)
        asked = [client.connection_pool for client in watchers.sentinels] if watchers is not None else []
        for pool in (lines.pool, *asked):
            with suppress(*FAULTS):
                await pool.disconnect()

    async def close(self) -> None:
        """Hang up in this loop; the next trip connects anew."""
        await self._lines.close()


class AsyncClusterLink:
    """What :class:`.ClusterLink` is for threads, with the same ``cluster``. ``make_link(address)`` makes the links."""

    def __init__(self, cluster: Cluster, make_link: Callable[[Address], AsyncLink]) -> None:
        self.cluster = cluster
        self._make_link = make_link
        self._links: dict[Address, AsyncLink] = {}

    async def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """See :meth:`Cluster.trip`."""
        replies: list[Any] = await arun(self.cluster.trip(commands, identity), self)
        return replies

    async def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Ask all nodes at once; raises :class:`StoreError`, when no task of it runs any more."""
        calls = [self._link(each.address).proved(each.commands, each.identity) for each in asks]
        if len(calls) == 1:
            return [await calls[0]]
        answers: list[Answer] = []
        for found in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            answers.append(found)
        return answers

    def _link(self, address: Address) -> AsyncLink:
        link = self._links.get(address)
        return link or self._links.setdefault(address, self._make_link(address))

    async def close(self) -> None:
        """Hang up in this loop; the next trip connects anew."""
        for link in list(self._links.values()):
            await link.close()


class _Patience:
    """Hangs up where no reply comes for so many ``seconds``; leaving the block then raises a timeout."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._ran_out = False

    def __enter__(self) -> _Patience:
        self.renew()
        self._timer = self._loop.call_at(self._until, self._look)
        return self

    def renew(self) -> None:
        """A reply came."""
        self._until = self._loop.time() + self._seconds

    def _look(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
        else:
            self._timer = self._loop.call_later(_GRACE, self._hang_up)

    def _hang_up(self) -> None:
        if self._loop.time() < self._until:
            self._look()
            return
        self._ran_out = True
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()  # whoever reads or writes learns of it

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._timer.cancel()
        if self._ran_out and not isinstance(error, asyncio.CancelledError):
            raise redis.TimeoutError("no reply in time") from error


class _Pulse:
    """Tells whether the loop was held up: ``missed`` is set if it was so for as many ``seconds`` without a break."""

    def __init__(self, seconds: float) -> None:
        self._pause = seconds / 5
        self._late = seconds - self._pause
        self._loop = asyncio.get_running_loop()
        self.missed = False

    def __enter__(self) -> _Pulse:
        self._wait()
        return self

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._pause, self._beat)

    def _beat(self) -> None:
        self.missed = self.missed or self._loop.time() - self._timer.when() >= self._late
        self._wait()

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis.ResponseError as error:
        return error
