"""Commands to one Redis or Valkey server, each trip with the proof of which server answered it.

The proof is the server's ``master_replid`` and ``run_id``, read when a connection is made: a restart or a promotion
gives others, and a load balancer's other server has others. A server that is demoted and promoted again keeps its
connections, so the identity is read again, in the same trip, where it was read a moment ago. A node of a Cluster has
its configuration epoch in it as well: see :mod:`.redis_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..exceptions import StoreError, StoreUnavailable
from .breaker import Breaker

#: A command's words, or all of them as they go over the wire.
Words = tuple[Any, ...] | bytes
#: The key that says which node of a Cluster is meant, and the words.
Command = tuple[str, Words]

#: How long a connection's identity is taken for known. Losing an acknowledged add and being the primary again takes a
#: server longer: a demotion, a full resynchronisation and a promotion were never seen to take less than 95 ms.
PROVED_SECONDS = 0.05

#: Errors of a server that may be itself again in a moment, by the first word of the reply.
_PASSING = {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"}
#: redis-py takes the first word away where it has a class for the error.
_WORDS: dict[type[Exception], str] = {
    redis.ReadOnlyError: "READONLY",
    redis.OutOfMemoryError: "OOM",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
}
_JOINED = 1 << 16  # bytes: shorter commands go out in one piece
#: Settings of a cache's pool that belong to that pool, or would make a failure take longer.
_LEFT_OUT = ("maint_", "orig_", "event_dispatcher", "cache", "himport_", "oss_", "connection_pool")

Pool = Callable[..., redis.ConnectionPool]


class Proof(NamedTuple):
    """Who answers on a connection, and when that was asked."""

    identity: str
    run_id: str
    at: float


class Link:
    """A pool of connections with one timeout, in seconds, to connect and for each reply. Nothing is tried twice.

    ``make_pool`` makes it from the keyword arguments of a connection, of which ``options`` are the user's. While
    ``breaker`` is open, :class:`StoreUnavailable` comes at once. ``clustered`` says that the server is one of several.
    """

    def __init__(
        self,
        make_pool: Pool,
        options: dict[str, Any],
        connect_timeout: float,
        timeout: float,
        clock: Callable[[], float],
        *,
        breaker: Breaker | None = None,
        clustered: bool = False,
    ) -> None:
        kwargs = {name: value for name, value in options.items() if not name.startswith(_LEFT_OUT)}
        self._on_connect: Callable[[Any], None] | None = kwargs.get("redis_connect_func")
        kwargs |= {
            "socket_connect_timeout": connect_timeout,
            "socket_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "decode_responses": False,
            "protocol": 2,
            "redis_connect_func": self._connected,
        }
        self._pool: Any = make_pool(**kwargs)
        self._clock = clock
        self._last: Proof | None = None
        self.breaker = breaker
        #: What a connection's identity is made of, beside the run id.
        self._asking: list[tuple[Any, ...]] = [("INFO", "replication")]
        if clustered:
            self._asking.append(("CLUSTER", "INFO"))

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> list[Any]:
        """Send all, read all: the replies, none of them an error but that a script is not known.

        Raises :class:`StoreUnavailable` where there is no answer or one that may be another soon, and
        :class:`StoreError` for other errors, and where ``identity`` is given and somebody else answered.
        """
        return self.send(commands).replies(identity)

    def everywhere(self, *words: object) -> list[Any]:
        """The reply of every server to one command: here of this one."""
        return self.trip([("", words)])

    def identity(self) -> str:
        """Who answered last, if that was a moment ago, or who answers now. Raises :class:`StoreError`."""
        if self._last is None or self._clock() - self._last.at >= PROVED_SECONDS:
            self.trip([("", ("PING",))])
        assert self._last is not None
        return self._last.identity

    def send(self, commands: Sequence[Command]) -> Call:
        """Send all, and leave the replies for later. Raises :class:`StoreUnavailable`."""
        if self.breaker is not None and not self.breaker.allows():
            raise StoreUnavailable("the server did not answer lately", "breaker")
        try:
            return Call(self, commands)
        except (redis.RedisError, OSError) as error:
            raise self.failed(error) from error

    def failed(self, error: Exception) -> StoreError:
        """Count it against the server unless it answered; what to raise."""
        found = _unavailable(error)
        if isinstance(found, StoreUnavailable):
            if self.breaker is not None:
                self.breaker.failed()
        else:
            self.answered(None)
        return found

    def answered(self, proof: Proof | None) -> None:
        """The server answered, and this is who it is."""
        if self.breaker is not None:
            self.breaker.succeeded()
        if proof is not None:
            self._last = proof

    def _connected(self, connection: Any) -> None:
        """Log in as the settings say, then ask who is there."""
        if self._on_connect is not None:
            self._on_connect(connection)
        else:
            connection.on_connect()
        asked = self._clock()
        connection.send_packed_command(connection.pack_commands([("INFO", "server"), *self._asking]))
        server = connection.read_response()
        connection.bloomguard = _proof(
            _field(server, "run_id"), [connection.read_response() for _ in self._asking], asked
        )

    def close(self) -> None:
        """Hang up everywhere; the next trip connects anew."""
        self._pool.disconnect()


class Call:
    """Commands on their way over one connection of ``link``: ask once for their :meth:`replies`."""

    __slots__ = ("_asked", "_commands", "_connection", "_link", "_stale")

    def __init__(self, link: Link, commands: Sequence[Command]) -> None:
        self._link = link
        self._commands = len(commands)
        self._connection: Any = link._pool.get_connection()
        try:
            self._asked = link._clock()
            self._stale = self._asked - self._connection.bloomguard.at >= PROVED_SECONDS
            words = [words for _, words in commands]
            self._connection.send_packed_command(
                _packed(self._connection, [*words, *link._asking] if self._stale else words)
            )
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Want no replies any more; nothing happens where they have been read."""
        if self._connection is not None:
            self._connection.disconnect()  # a reply that is still to come would be taken for the next command's
            self._release()

    def _release(self) -> None:
        self._link._pool.release(self._connection)
        self._connection = None

    def replies(self, identity: str | None = None) -> list[Any]:
        """See :meth:`Link.trip`."""
        try:
            proof, replies = self._read()
        except (redis.RedisError, OSError) as error:
            raise self._link.failed(error) from error
        for reply in replies:
            if isinstance(reply, redis.ResponseError) and not isinstance(reply, redis.exceptions.NoScriptError):
                raise self._link.failed(reply)
        self._link.answered(proof)
        if identity is not None and proof.identity != identity:
            raise StoreError("another server answers than the one that the filter was built in, or it was restarted")
        return replies

    def _read(self) -> tuple[Proof, list[Any]]:
        connection = self._connection
        try:
            replies = [_reply(connection) for _ in range(self._commands)]
            # Read now: sending connects anew where the server has hung up.
            proof: Proof = connection.bloomguard
            if self._stale:
                proof = _proof(proof.run_id, [_reply(connection) for _ in self._link._asking], self._asked)
                connection.bloomguard = proof
            if any(isinstance(reply, redis.ReadOnlyError) for reply in replies):
                connection.disconnect()  # whoever is the primary now, it is not this one
        except BaseException:
            self.abandon()
            raise
        self._release()
        return proof, replies


def _packed(connection: Any, commands: Sequence[Words]) -> list[bytes]:
    """The pieces to send, each in a call of its own."""
    pieces: list[bytes] = []
    for command in commands:
        packed = command if isinstance(command, bytes) else connection.pack_command(*command)
        pieces += [packed] if isinstance(packed, bytes) else packed
    return [b"".join(pieces)] if len(pieces) > 1 and sum(map(len, pieces)) < _JOINED else pieces


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _proof(run_id: str, replies: Sequence[Any], at: float) -> Proof:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    replication, *rest = replies
    if _field(replication, "role") != "master":
        raise redis.ReadOnlyError("READONLY it is a replica")
    identity = f"redis:{_field(replication, 'master_replid')}:{run_id}"
    for cluster in rest:
        identity += f":{_field(cluster, 'cluster_my_epoch')}"
    return Proof(identity, run_id, at)


def _field(info: bytes, name: str) -> str:
    for line in info.decode(errors="replace").splitlines():
        if line.startswith(name + ":"):
            return line.partition(":")[2].strip()
    raise redis.ResponseError(f"INFO does not tell its {name}")


def _unavailable(error: Exception) -> StoreError:
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        return StoreUnavailable("the server did not answer in time", "timeout")
    if isinstance(error, redis.AuthenticationError):
        return StoreUnavailable(f"the server refused the login: {error}", "login")
    if isinstance(error, (redis.ConnectionError, OSError)) and not isinstance(error, redis.BusyLoadingError):
        return StoreUnavailable(f"no connection to the server: {error}", "connection")
    return _refusal(error)


def _refusal(error: Exception) -> StoreError:
    word = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), str(error).partition(" ")[0])
    if isinstance(error, redis.exceptions.AskError):  # and MovedError, which is one
        return StoreError("the key's slot was moved to another node, or is on its way there")
    if word in _PASSING:
        return StoreUnavailable(f"the server refuses commands: {word}", word.lower())
    return StoreError(f"the server answered with an error: {error}")
