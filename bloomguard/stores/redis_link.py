"""Commands to one Redis or Valkey server, each trip with the proof of which server answered it.

The proof is the server's ``master_replid`` and ``run_id``, read when a connection is made: a restart or a promotion
gives others, and a load balancer's other server has others. A server that is demoted and promoted again keeps its
connections, so the identity is read again, in the same trip, where it was read a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..exceptions import StoreError, StoreUnavailable

#: A command's words, or all of it as it goes over the wire.
Command = tuple[Any, ...] | bytes

#: How long a connection's identity is taken for known. Losing an acknowledged add and being the primary again takes a
#: server longer: a demotion, a full resynchronisation and a promotion were never seen to take less than 95 ms.
PROVED_SECONDS = 0.05

#: Errors of a server that may be itself again in a moment, by the first word of the reply.
_PASSING = {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"}
_JOINED = 1 << 16  # bytes: shorter commands go out in one piece
#: Settings of a cache's pool that belong to that pool, or would make a failure take longer.
_LEFT_OUT = ("maint_", "orig_", "event_dispatcher", "cache", "himport_")


class Proof(NamedTuple):
    """Who answers on a connection, and when that was asked."""

    identity: str
    run_id: str
    at: float


class Link:
    """A pool of connections with one timeout, in seconds, to connect and for each reply. Nothing is tried twice."""

    def __init__(
        self, pool: redis.ConnectionPool, connect_timeout: float, timeout: float, clock: Callable[[], float]
    ) -> None:
        kwargs = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_LEFT_OUT)}
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
        self._pool = redis.ConnectionPool(connection_class=pool.connection_class, **kwargs)
        self._clock = clock

    def trip(self, commands: Sequence[Command], identity: str | None = None) -> tuple[str, list[Any]]:
        """Send all, read all: the identity of who answered, and the replies, none of them an error.

        Raises :class:`StoreUnavailable` where there is no answer or one that may be another soon, and
        :class:`StoreError` for other errors, and where ``identity`` is given and somebody else answered.
        """
        try:
            proof, replies = self._talk(commands)
        except (redis.RedisError, OSError) as error:
            raise _unavailable(error) from error
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise _refusal(reply)
        if identity is not None and proof.identity != identity:
            raise StoreError("another server answers than the one that the filter was built in, or it was restarted")
        return proof.identity, replies

    def _talk(self, commands: Sequence[Command]) -> tuple[Proof, list[Any]]:
        connection: Any = self._pool.get_connection()
        try:
            asked = self._clock()
            stale = asked - connection.bloomguard.at >= PROVED_SECONDS
            if stale:
                commands = [*commands, ("INFO", "replication")]
            connection.send_packed_command(_packed(connection, commands))
            replies = [_reply(connection) for _ in commands]
            # Read now: sending connects anew where the server has hung up.
            proof: Proof = connection.bloomguard
            if stale:
                proof = _proof(proof.run_id, replies.pop(), asked)
                connection.bloomguard = proof
            if any(isinstance(reply, redis.ReadOnlyError) for reply in replies):
                connection.disconnect()  # whoever is the primary now, it is not this one
        except BaseException:
            connection.disconnect()  # a reply that is still to come would be taken for the next command's
            raise
        finally:
            self._pool.release(connection)
        return proof, replies

    def _connected(self, connection: Any) -> None:
        """Log in as the settings say, then ask who is there."""
        if self._on_connect is not None:
            self._on_connect(connection)
        else:
            connection.on_connect()
        asked = self._clock()
        connection.send_packed_command(connection.pack_commands([("INFO", "server"), ("INFO", "replication")]))
        server = connection.read_response()
        connection.bloomguard = _proof(_field(server, "run_id"), connection.read_response(), asked)

    def close(self) -> None:
        """Hang up everywhere; the next trip connects anew."""
        self._pool.disconnect()


def _packed(connection: Any, commands: Sequence[Command]) -> list[bytes]:
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


def _proof(run_id: str, replication: Any, at: float) -> Proof:
    if isinstance(replication, Exception):
        raise replication
    if _field(replication, "role") != "master":
        raise redis.ReadOnlyError("READONLY it is a replica")
    return Proof(f"redis:{_field(replication, 'master_replid')}:{run_id}", run_id, at)


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
    # redis-py takes the first word away where it has a class for the error.
    kinds = {redis.ReadOnlyError: "READONLY", redis.OutOfMemoryError: "OOM", redis.BusyLoadingError: "LOADING"}
    word = next((word for kind, word in kinds.items() if isinstance(error, kind)), str(error).partition(" ")[0])
    if word in _PASSING:
        return StoreUnavailable(f"the server refuses commands: {word}", word.lower())
    return StoreError(f"the server answered with an error: {error}")
