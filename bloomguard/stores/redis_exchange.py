"""What goes to a Redis or Valkey server and what its replies mean, whoever carries them: a thread or an event loop.

Each trip comes with the proof of which server answered it: the server's ``master_replid`` and ``run_id``, read when a
connection is made. A restart or a promotion gives others, and a load balancer's other server has others. A server that
is demoted and promoted again keeps its connections, so the identity is read again, in the same trip, where it was read
a moment ago. A node of a Cluster has its configuration epoch in it as well: see :mod:`.redis_cluster`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis

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
_MOVED = {"ASK", "MOVED"}
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

#: What a connection raises where the server, or the way to it, is at fault.
FAULTS = (redis.RedisError, OSError, TimeoutError)


class Proof(NamedTuple):
    """Who answers on a connection, and when that was asked."""

    identity: str
    run_id: str
    at: float


class Server:
    """One server as this process knows it, over whatever connections: is it there, and who is it.

    While ``breaker`` is open, nobody asks it. ``clustered`` says that it is one of several. No error's text has one of
    the ``secrets``.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        breaker: Breaker | None = None,
        clustered: bool = False,
        secrets: Sequence[str] = (),
    ) -> None:
        self.clock = clock
        self.breaker = breaker
        self._secrets = secrets
        #: Who answered last.
        self.last: Proof | None = None
        #: What a connection's identity is made of, beside the run id.
        self.asking: list[tuple[Any, ...]] = [("INFO", "replication")]
        if clustered:
            self.asking.append(("CLUSTER", "INFO"))

    def check(self) -> None:
        """Raise :class:`StoreUnavailable` while the breaker is open."""
        if self.breaker is not None and not self.breaker.allows():
            raise StoreUnavailable("the server did not answer lately", "breaker")

    def failed(self, error: Exception) -> StoreError:
        """Count it against the server unless it answered; what to raise."""
        hide(error, self._secrets)
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
            self.last = proof

    @property
    def greeting(self) -> list[tuple[Any, ...]]:
        """What a new connection asks first, for :meth:`introduced`."""
        return [("INFO", "server"), *self.asking]

    def introduced(self, replies: Sequence[Any], asked: float) -> Proof:
        """Who is there, by the replies to :attr:`greeting`; raises what redis-py raises."""
        server, *rest = replies
        return _proof(_field(server, "run_id"), rest, asked)


class Exchange:
    """Commands on their way over one connection, which has its :class:`Proof` as ``bloomguard``.

    Send the ``pieces``, each in a call of its own, read ``expected`` replies, errors among them, and give them to
    :meth:`read`.
    """

    __slots__ = ("_asked", "_commands", "_connection", "_server", "_stale", "expected", "pieces")

    def __init__(self, server: Server, connection: Any, commands: Sequence[Command]) -> None:
        self._server = server
        self._connection = connection
        self._commands = len(commands)
        self._asked = server.clock()
        self._stale = self._asked - connection.bloomguard.at >= PROVED_SECONDS
        asking = server.asking if self._stale else []
        words = [words for _, words in commands]
        self.pieces = _packed(connection, [*words, *asking])
        self.expected = len(words) + len(asking)

    def read(self, replies: list[Any]) -> tuple[Proof, list[Any]]:
        """Who answered, and the replies to the commands; raises what redis-py raises if nobody can say who."""
        # Read now: sending connects anew where the server has hung up.
        proof: Proof = self._connection.bloomguard
        if self._stale:
            proof = _proof(proof.run_id, replies[self._commands :], self._asked)
            self._connection.bloomguard = proof
            replies = replies[: self._commands]
        return proof, replies


def judge(server: Server, proof: Proof, replies: list[Any], identity: str | None) -> list[Any]:
    """The replies, none of them an error but that a script is not known.

    Raises :class:`StoreUnavailable` for an answer that may be another soon, and :class:`StoreError` for other errors,
    and where ``identity`` is given and somebody else answered.
    """
    for reply in replies:
        if isinstance(reply, redis.ResponseError) and not isinstance(reply, redis.exceptions.NoScriptError):
            raise server.failed(reply)
    server.answered(proof)
    if identity is not None and proof.identity != identity:
        raise StoreError("another server answers than the one that the filter was built in, or it was restarted")
    return replies


#: A server that does not know a command repeats its words: those of AUTH are a login.
_REPEATED = re.compile(r",? with args beginning with:.*", re.DOTALL)

_LOGIN = re.compile(r"://[^\s@]*@")


def hide(error: BaseException | None, secrets: Sequence[str]) -> None:
    """Take ``secrets`` out of the text of ``error`` and of all that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(_without(arg, secrets) if isinstance(arg, str) else arg for arg in error.args)
        error = error.__cause__ or error.__context__


def _without(text: str, secrets: Sequence[str]) -> str:
    text = _LOGIN.sub("://***@", _REPEATED.sub("", text))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def is_demoted(replies: Sequence[Any]) -> bool:
    """Whether a connection is of no use any more: whoever is the primary now, it is not this one."""
    return any(isinstance(reply, redis.ReadOnlyError) for reply in replies)


def own_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a pool's connections that are not about the pool."""
    return {name: value for name, value in options.items() if not name.startswith(_LEFT_OUT)}


def connection_options(options: dict[str, Any], connect_timeout: float, timeout: float, retry: Any) -> dict[str, Any]:
    """The keyword arguments of a connection, of which ``options`` are the user's; nothing is tried twice."""
    return own_options(options) | {
        "socket_connect_timeout": connect_timeout,
        "socket_timeout": timeout,
        "retry": retry,
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
    }


def _packed(connection: Any, commands: Sequence[Words]) -> list[bytes]:
    """The pieces to send, each in a call of its own."""
    pieces: list[bytes] = []
    for command in commands:
        packed = command if isinstance(command, bytes) else connection.pack_command(*command)
        pieces += [packed] if isinstance(packed, bytes) else packed
    return [b"".join(pieces)] if len(pieces) > 1 and sum(map(len, pieces)) < _JOINED else pieces


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
    if isinstance(error, redis.exceptions.AskError) or word in _MOVED:  # and MovedError, which is one
        return StoreError("the key's slot was moved to another node, or is on its way there")
    if word in _PASSING:
        return StoreUnavailable(f"the server refuses commands: {word}", word.lower())
    return StoreError(f"the server answered with an error: {error}")
