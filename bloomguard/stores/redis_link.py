"""Connections of threads to one Redis or Valkey server; what goes over them: :mod:`.redis_exchange`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .redis_exchange import (
    FAULTS,
    PROVED_SECONDS,
    Command,
    Exchange,
    Proof,
    Server,
    connection_options,
    is_demoted,
    judge,
)

Pool = Callable[..., redis.ConnectionPool]


class Link:
    """A pool of connections with one timeout, in seconds, to connect and for each reply. Nothing is tried twice.

    ``make_pool`` makes it from the keyword arguments of a connection, of which ``options`` are the user's.
    """

    def __init__(
        self, server: Server, make_pool: Pool, options: dict[str, Any], connect_timeout: float, timeout: float
    ) -> None:
        kwargs = connection_options(options, connect_timeout, timeout, Retry(NoBackoff(), 0))
        self._on_connect: Callable[[Any], None] | None = kwargs.get("redis_connect_func")
        self.pool: Any = make_pool(**kwargs | {"redis_connect_func": self._connected})
        self.server = server

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Send all, read all: the replies, none of them an error but that a script is not known.

        Raises :class:`StoreUnavailable` where there is no answer or one that may be another soon, or while the server's
        breaker is open, and :class:`StoreError` for other errors, and where ``identity`` is given and somebody else
        answered.
        """
        return self.send(commands).replies(identity)

    def everywhere(self, *words: object) -> list[Any]:
        """The reply of every server to one command: here of this one."""
        return self.trip([("", words)])

    def identity(self) -> str:
        """Who answered last, if that was a moment ago, or who answers now. Raises :class:`StoreError`."""
        last = self.server.last
        if last is None or self.server.clock() - last.at >= PROVED_SECONDS:
            self.trip([("", ("PING",))])
            last = self.server.last
        assert last is not None
        return last.identity

    def send(self, commands: Sequence[Command]) -> Call:
        """Send all, and leave the replies for later. Raises :class:`StoreUnavailable`."""
        self.server.check()
        try:
            return Call(self, commands)
        except FAULTS as error:
            raise self.server.failed(error) from error

    def _connected(self, connection: Any) -> None:
        """Log in as the settings say, then ask who is there."""
        if self._on_connect is not None:
            self._on_connect(connection)
        else:
            connection.on_connect()
        asked, greeting = self.server.clock(), self.server.greeting
        connection.send_packed_command(connection.pack_commands(greeting))
        connection.bloomguard = self.server.introduced([connection.read_response() for _ in greeting], asked)

    def close(self) -> None:
        """Hang up everywhere; the next trip connects anew."""
        self.pool.disconnect()


class Call:
    """Commands on their way over one connection of ``link``: ask once for their :meth:`replies`."""

    __slots__ = ("_connection", "_exchange", "_link")

    def __init__(self, link: Link, commands: Sequence[Command]) -> None:
        self._link = link
        self._connection: Any = link.pool.get_connection()
        try:
            self._exchange = Exchange(link.server, self._connection, commands)
            self._connection.send_packed_command(self._exchange.pieces)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Want no replies any more; nothing happens where they have been read."""
        if self._connection is not None:
            self._connection.disconnect()  # a reply that is still to come would be taken for the next command's
            self._release()

    def _release(self) -> None:
        self._link.pool.release(self._connection)
        self._connection = None

    def replies(self, identity: str | None = None) -> list[Any]:
        """See :meth:`Link.trip`."""
        return self.proved(identity)[1]

    def proved(self, identity: str | None = None) -> tuple[str, list[Any]]:
        """Who answered, and the replies; raises what :meth:`Link.trip` raises."""
        server = self._link.server
        try:
            proof, replies = self._read()
        except FAULTS as error:
            raise server.failed(error) from error
        return proof.identity, judge(server, proof, replies, identity)

    def _read(self) -> tuple[Proof, list[Any]]:
        connection = self._connection
        try:
            read = self._exchange.read([_reply(connection) for _ in range(self._exchange.expected)])
            if is_demoted(read[1]):
                connection.disconnect()
        except BaseException:
            self.abandon()
            raise
        self._release()
        return read


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
