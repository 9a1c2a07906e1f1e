"""Async connections to one Redis or Valkey server: the async version of :class:`.Link`.

Each event loop has its own pool. A task that is cancelled or times out closes its connection: otherwise the late reply
would be read as the reply to the next command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ...exceptions import StoreError, StoreUnavailable
from ...process import after_fork
from .commands import Command, RoundTrip, Server, ServerId, check_replies, connection_options, is_demoted

Pool = Callable[..., redis.asyncio.ConnectionPool]

#: Maximum per loop: more are not faster, and many requests must not open as many connections.
_MAX_CONNECTIONS = 16
#: Extra seconds after a timeout, in which a loop that was blocked can read a reply that has arrived meanwhile.
_GRACE = 0.001


class _Connections(NamedTuple):
    """The pool that makes a loop's connections, a semaphore that limits how many are in use, and those to reuse."""

    pool: Any
    free: asyncio.Semaphore
    idle: list[Any]


class AsyncLink:
    """Async version of :class:`.Link`, which shares its ``server``, and so its circuit breaker and identity.

    At most 16 tasks of a loop use a connection at once; others wait at most ``timeout`` seconds for a free one.
    Connections are closed when their loop shuts down its async generators, as ``asyncio.run`` and all servers do. Those
    of a loop that was closed without that are dropped when another loop asks for its own.
    """

    def __init__(
        self, server: Server, make_pool: Pool, options: dict[str, Any], connect_timeout: float, timeout: float
    ) -> None:
        kwargs = connection_options(options, connect_timeout, timeout, Retry(NoBackoff(), 0))
        self._timeout = timeout
        self._make_pool = partial(make_pool, **kwargs | {"redis_connect_func": self._connected})
        self._made: dict[asyncio.AbstractEventLoop, tuple[_Connections, AsyncGenerator[None, None]]] = {}
        self._parents: list[Any] = []
        self.server = server
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Keep the parent's objects: to close them here would change the selector that parent and child share.
        self._parents.append(self._made)
        self._made = {}

    async def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """See :meth:`.Link.trip`."""
        try:
            server_id, replies = await self._exchange(commands)
        except StoreError:
            raise
        except Exception as error:
            raise self.server.failed(error) from error
        return check_replies(self.server, server_id, replies, identity)

    async def _exchange(self, commands: Sequence[Command]) -> tuple[ServerId, list[Any]]:
        own = await self._here()
        await self._acquire(own.free)
        try:
            self.server.check()
            connection = own.idle.pop() if own.idle else own.pool.make_connection()
            try:
                await self._connect(own.pool, connection)
                read = await self._talk(connection, commands)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            if is_demoted(read[1]):
                await connection.disconnect(nowait=True)
            own.idle.append(connection)
            return read
        finally:
            own.free.release()

    async def _here(self) -> _Connections:
        """Return the connections of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for other in [other for other in list(self._made) if other.is_closed()]:
                self._made.pop(other, None)
            made = _Connections(self._make_pool(), asyncio.Semaphore(_MAX_CONNECTIONS), [])
            found = self._made[loop] = made, self._keep(loop, made)
            # loop.shutdown_asyncgens() closes the generators that have started in the loop.
            await found[1].__anext__()
        return found[0]

    async def _keep(self, loop: asyncio.AbstractEventLoop, made: _Connections) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._made.pop(loop, None)
            manager: Any = getattr(made.pool, "sentinel_manager", None)
            of_sentinels = [client.connection_pool for client in manager.sentinels] if manager is not None else []
            for each in (*made.idle, *of_sentinels):
                with suppress(Exception):
                    await each.disconnect()

    async def _connect(self, pool: Any, connection: Any) -> None:
        """Connect if needed; see :meth:`.Link.connection`."""
        is_open = connection.is_connected and not (connection._reader.at_eof() or connection._writer.is_closing())
        if is_open and not connection.bloomguard.is_old():
            return
        if not is_open:
            await connection.disconnect(nowait=True)  # what the server has closed still counts as connected
            tls = getattr(connection, "ssl_context", None)
            if tls is not None and getattr(tls, "context", None) is None:
                await asyncio.to_thread(tls.get)  # reads the system's certificates: 40 ms, too long for the timeout
        await pool.ensure_connection(connection)

    async def _acquire(self, free: asyncio.Semaphore) -> None:
        if not free.locked():
            await free.acquire()
            return
        acquired = asyncio.ensure_future(free.acquire())
        try:
            # Not `asyncio.wait_for`, which before Python 3.12 can lose the cancellation of a task.
            if not (await asyncio.wait({acquired}, timeout=self._timeout))[0]:
                raise StoreUnavailable(
                    f"all {_MAX_CONNECTIONS} connections of the event loop were in use for {self._timeout:g} s"
                )
        except BaseException:
            acquired.cancel()
            acquired.add_done_callback(lambda done: None if done.cancelled() else free.release())  # it came in time
            raise

    async def _talk(self, connection: Any, commands: Sequence[Command]) -> tuple[ServerId, list[Any]]:
        with _time_limit(connection, self._timeout):
            round_trip = RoundTrip(self.server, connection, commands)
            server_id, replies = await self._send_and_read(connection, round_trip)
            if (proof := round_trip.proof()) is not None:
                server_id, _ = await self._send_and_read(connection, proof)
        return server_id, replies

    @staticmethod
    async def _send_and_read(connection: Any, round_trip: RoundTrip) -> tuple[ServerId, list[Any]]:
        replies: list[Any] = []
        await connection.send_packed_command(round_trip.pieces)
        for _ in range(round_trip.expected):
            try:
                replies.append(await connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        return round_trip.read(replies)

    async def _connected(self, connection: Any) -> None:
        """Log in with the user's options, then read the server's identity."""
        # _time_limit allows for a blocked loop. And redis-py's own timeout uses asyncio.wait_for.
        connection.socket_timeout = None
        with _time_limit(connection, 2 * self._timeout):
            await connection.on_connect()
            asked, greeting = self.server.greeting()
            await connection.send_packed_command(connection.pack_commands(greeting))
            replies = [await connection.read_response() for _ in greeting]
            connection.bloomguard = self.server.read_greeting(replies, asked)


@contextmanager
def _time_limit(connection: Any, seconds: float) -> Iterator[None]:
    """Close the connection if the block takes longer than ``seconds``, and raise a timeout in place of its error."""
    loop, is_over = asyncio.get_running_loop(), False
    timer: asyncio.TimerHandle

    def abort() -> None:
        nonlocal is_over
        is_over = True
        if connection._writer is not None:
            connection._writer.transport.abort()  # the task's pending read or write raises

    def wait_again() -> None:
        nonlocal timer
        timer = loop.call_later(_GRACE, abort)

    timer = loop.call_later(seconds, wait_again)
    try:
        yield
    except Exception as error:
        if is_over:
            raise redis.TimeoutError("no reply in time") from error
        raise
    finally:
        timer.cancel()
