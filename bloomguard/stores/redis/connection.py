"""Connections of threads to one Redis or Valkey server; :mod:`.commands` encodes commands and checks replies."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .commands import NO_LIMIT, Command, RoundTrip, Server, ServerId, check_replies, connection_options, is_demoted

Pool = Callable[..., redis.ConnectionPool]


class Link:
    """A connection pool with a timeout in seconds to connect and one for each reply. No command is retried.

    ``make_pool(**kwargs)`` creates the pool; the keyword arguments of its connections include the user's ``options``.
    """

    def __init__(
        self, server: Server, make_pool: Pool, options: dict[str, Any], connect_timeout: float, timeout: float
    ) -> None:
        kwargs = connection_options(options, connect_timeout, timeout, Retry(NoBackoff(), 0))
        self._on_connect: Callable[[Any], None] | None = kwargs.get("redis_connect_func")
        self.pool: Any = make_pool(**kwargs | {"redis_connect_func": self._connected, "max_connections": NO_LIMIT})
        self.server = server
        self.idle: list[Any] = []

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Send commands in one round trip and return their replies, checked by :func:`.check_replies`.

        Raises :class:`StoreUnavailable` also for a missing reply and while the circuit breaker is open.
        """
        return self.send(commands).identified(identity)[1]

    def send_to_all(self, *words: object) -> list[Any]:
        """Send one command to every server, here the only one, and return the replies."""
        return self.trip([("", words)])

    def identity(self) -> str:
        """Return the server's identity, at most :data:`.PROVED_SECONDS` old. Raises :class:`StoreError`."""
        last = self.server.last
        if last is None or last.is_old():
            self.trip([("", ("PING",))])
            last = self.server.last
        assert last is not None
        return last.identity

    def send(self, commands: Sequence[Command]) -> Call:
        """Send commands without reading the replies. Raises :class:`StoreUnavailable`."""
        self.server.check()
        try:
            return Call(self, commands)
        except Exception as error:
            raise self.server.failed(error) from error

    def connection(self) -> Any:
        """Return a connection that no other thread uses.

        The pool checks whether the server has closed it, which takes half as long as a round trip. So it is only asked
        if the connection's identity is old: a server that closes a connection sooner has restarted or is being stopped.
        """
        try:
            connection = self.idle.pop()
        except IndexError:
            return self.pool.get_connection()
        if not connection.bloomguard.is_old() and connection.pid == os.getpid():  # else it is a parent's
            return connection
        self.pool.release(connection)
        return self.pool.get_connection()

    def release_idle(self) -> None:
        """Leave it to the pool to check all connections before they are used again."""
        with suppress(IndexError):
            while True:
                self.pool.release(self.idle.pop())

    def _connected(self, connection: Any) -> None:
        """Log in with the user's options, then read the server's identity."""
        if self._on_connect is not None:
            self._on_connect(connection)
        else:
            connection.on_connect()
        asked, greeting = self.server.greeting()
        connection.send_packed_command(connection.pack_commands(greeting))
        connection.bloomguard = self.server.read_greeting([connection.read_response() for _ in greeting], asked)

    def close(self) -> None:
        """Close all connections; the next round trip opens new ones."""
        self.release_idle()
        self.pool.disconnect()


class Call:
    """Commands that were sent over one connection of ``link``; call :meth:`identified` once to read their replies."""

    __slots__ = ("_connection", "_link", "_round_trip")

    def __init__(self, link: Link, commands: Sequence[Command]) -> None:
        self._link = link
        self._connection: Any = link.connection()
        try:
            self._round_trip = RoundTrip(link.server, self._connection, commands)
            self._connection.send_packed_command(self._round_trip.pieces, check_health=False)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up unread replies; does nothing if they have been read."""
        if self._connection is not None:
            self._connection.disconnect()  # otherwise a late reply would be read as that to the next command
            self._link.pool.release(self._connection)
            self._link.release_idle()  # the server, or a proxy, may have closed these, too
            self._connection = None

    def identified(self, identity: str | None = None) -> tuple[str, list[Any]]:
        """Return the server's identity and the replies; raises the exceptions of :meth:`Link.trip`."""
        connection = self._connection
        try:
            server_id, replies = self._read(self._round_trip)
            if (proof := self._round_trip.proof()) is not None:
                connection.send_packed_command(proof.pieces, check_health=False)
                server_id, _ = self._read(proof)
        except Exception as error:
            self.abandon()
            raise self._link.server.failed(error) from error
        except BaseException:
            self.abandon()
            raise
        if is_demoted(replies):
            self.abandon()
        else:
            self._connection = None
            self._link.idle.append(connection)
        return server_id.identity, check_replies(self._link.server, server_id, replies, identity)

    def _read(self, round_trip: RoundTrip) -> tuple[ServerId, list[Any]]:
        replies: list[Any] = []
        for _ in range(round_trip.expected):
            try:
                replies.append(self._connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        return round_trip.read(replies)
