"""Commands to a Redis or Valkey server and their replies, without I/O: both threads and event loops use it.

Each round trip identifies the server by its ``master_replid`` and ``run_id``, read when a connection is made. They
change with a restart or a promotion, and another server behind a load balancer has others. A server that is demoted and
promoted again keeps its connections, so if the identity is older than :data:`PROVED_SECONDS`, the round trip reads it
again, after its commands. If the replies come so late that it is too old by then, another round trip reads it. The
identity of a Cluster node also has its configuration epoch: see :mod:`.cluster`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis

from ...exceptions import StoreError, StoreUnavailable
from ...process import is_within, own_lock, seconds

#: A command's words, or the command encoded in the Redis protocol.
Words = tuple[Any, ...] | bytes
#: The key that selects the node of a Cluster, and the command.
Command = tuple[str, Words]


class Part(NamedTuple):
    """The commands of a round trip to one shard; ``read(replies)`` decodes or checks their replies.

    It raises :class:`CorruptFilter` if the shard is not the expected one.
    """

    commands: Sequence[Command]
    read: Callable[[Sequence[Any]], Any]


#: How old the identity of a connection may be when commands are sent, and when their replies have come. A server takes
#: longer than that to lose an acknowledged add and be the primary again: a demotion, a full resynchronisation and a
#: promotion took at least 95 ms in tests.
PROVED_SECONDS, OLDEST_SECONDS = 0.05, 0.09

#: Temporary errors of a server, by the first word of the reply.
_TEMPORARY = {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"}
_MOVED = {"ASK", "MOVED"}
#: redis-py removes the first word of errors that it has a class for.
_WORDS: dict[type[Exception], str] = {
    redis.ReadOnlyError: "READONLY",
    redis.OutOfMemoryError: "OOM",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
}
_JOIN_BYTES = 1 << 16  # commands shorter than this in total are sent in one piece

#: ``max_connections`` of the pools for threads: redis-py 8 has 100 by default, and one more thread, or greenlet, would
#: get an error instead of a connection, as if the server did not answer.
NO_LIMIT = 1 << 31

#: ``FAILURES`` within ``WITHIN_SECONDS`` open a circuit breaker. It allows a probe each ``PROBE_SECONDS``, until one is
#: answered.
FAILURES = 5
WITHIN_SECONDS = 10.0
PROBE_SECONDS = 2.0

#: Returns monotonic seconds, with the host's sleep, during which a server may fail over; tests replace it.
clock: Callable[[], float] = seconds


class ServerId(NamedTuple):
    """The identity of a connection's server, and the time ``at`` which it was queried."""

    identity: str
    run_id: str
    at: float

    def is_old(self) -> bool:
        """Return whether the server has to be queried again."""
        return not is_within(PROVED_SECONDS, self.at, clock())


class Breaker:
    """A circuit breaker, so that requests do not wait for a server that is down."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=FAILURES)
        self._probe_at: float | None = None  # when the next probe is due; None while the breaker is closed
        self._lock = own_lock(self, "_lock")

    def allows(self) -> bool:
        """Return whether a read may be tried now."""
        if self._probe_at is None:  # nearly always, and then no read waits for another thread's
            return True
        with self._lock:
            now = clock()
            if self._probe_at is None:
                return True
            if 0.0 < self._probe_at - now <= PROBE_SECONDS:  # more if the clock went back
                return False
            self._probe_at = now + PROBE_SECONDS
            return True

    def failed(self) -> None:
        """Count a failure."""
        with self._lock:
            now = clock()
            self._failures.append(now)
            full = len(self._failures) == FAILURES and now - self._failures[0] <= WITHIN_SECONDS
            if self._probe_at is None and full:
                self._probe_at = now + PROBE_SECONDS

    def succeeded(self) -> None:
        """Close the breaker."""
        if self._probe_at is not None:
            with self._lock:
                self._failures.clear()
                self._probe_at = None


class Server:
    """What this process knows of one server, shared by all of its connections: reachability and identity.

    While ``breaker`` is open, no commands are sent. ``clustered`` means a node of a Cluster. ``secrets`` are removed
    from error messages.
    """

    def __init__(self, *, breaker: Breaker | None = None, clustered: bool = False, secrets: Sequence[str] = ()) -> None:
        self.breaker = breaker
        self._clustered = clustered
        self._secrets = secrets
        #: Identity in the latest reply.
        self.last: ServerId | None = None
        #: Commands whose replies give the identity, together with the run ID.
        self.identity_commands: list[tuple[Any, ...]] = [("INFO", "replication")]
        if clustered:
            self.identity_commands.append(("CLUSTER", "INFO"))

    def check(self) -> None:
        """Raise :class:`StoreUnavailable` while the breaker is open."""
        if self.breaker is not None and not self.breaker.allows():
            raise StoreUnavailable(
                f"the server did not answer {FAILURES} requests; it is tried again every {PROBE_SECONDS:g} s"
            )

    def failed(self, error: Exception) -> StoreError:
        """Count a failure, or a success if the error is a reply; return the exception to raise."""
        hide(error, self._secrets)
        found = _unavailable(error, self._clustered)
        if isinstance(found, StoreUnavailable):
            if self.breaker is not None:
                self.breaker.failed()
        else:
            self.answered(None)
        return found

    def answered(self, server_id: ServerId | None) -> None:
        """Record a reply and the identity of the server."""
        if self.breaker is not None:
            self.breaker.succeeded()
        if server_id is not None:
            self.last = server_id

    def greeting(self) -> tuple[float, list[tuple[Any, ...]]]:
        """Return the time, and the first commands of a new connection, for :meth:`read_greeting`."""
        return clock(), [("INFO", "server"), *self.identity_commands]

    def read_greeting(self, replies: Sequence[Any], asked: float) -> ServerId:
        """Return the identity in the replies to :meth:`greeting`; raises the exceptions of redis-py."""
        server, *rest = replies
        return _server_id(_own_id(server, "run_id"), rest, asked)


class RoundTrip:
    """Commands of one round trip over a connection whose attribute ``bloomguard`` is its :class:`ServerId`.

    Send each of the ``pieces`` in a separate call, read ``expected`` replies, including errors, and pass them to
    :meth:`read`. Then do the same with :meth:`proof`, if there is one.
    """

    __slots__ = ("_asked", "_commands", "_connection", "_server", "expected", "pieces")

    def __init__(self, server: Server, connection: Any, commands: Sequence[Command]) -> None:
        self._server, self._connection = server, connection
        self._commands = len(commands)
        words = [words for _, words in commands]
        self._asked = clock() if connection.bloomguard.is_old() else None
        if self._asked is not None:
            words += server.identity_commands
        self.pieces = _packed(connection, words)
        self.expected = len(words)

    def read(self, replies: list[Any]) -> tuple[ServerId, list[Any]]:
        """Return the server's identity and the replies; raises redis-py's exceptions if the identity is unknown."""
        # Not in __init__: sending opens a new connection if the server has closed the old one.
        server_id: ServerId = self._connection.bloomguard
        if self._asked is not None:
            server_id = _server_id(server_id.run_id, replies[self._commands :], self._asked)
            self._connection.bloomguard = server_id
            replies = replies[: self._commands]
        return server_id, replies

    def proof(self) -> RoundTrip | None:
        """Return the round trip that reads the identity once more, if it was too old when the replies came.

        This process, or the network, may have stood still between any two steps.
        """
        is_fresh = self._asked is not None or is_within(OLDEST_SECONDS, self._connection.bloomguard.at, clock())
        return None if is_fresh else RoundTrip(self._server, self._connection, ())


def check_replies(server: Server, server_id: ServerId, replies: list[Any], identity: str | None) -> list[Any]:
    """Return the replies; a ``NoScriptError`` may be among them.

    Raises :class:`StoreUnavailable` for a temporary error, and :class:`StoreError` for other errors, and if the server
    has another identity than a given ``identity``.
    """
    for reply in replies:
        if isinstance(reply, redis.ResponseError) and not isinstance(reply, redis.exceptions.NoScriptError):
            raise server.failed(reply)
    server.answered(server_id)
    if identity is not None and server_id.identity != identity:
        raise StoreError("another server answers than when the filter was built, or it was restarted; rebuild it")
    return replies


#: The reply to an unknown command quotes its arguments; those of AUTH are a login.
_REPEATED = re.compile(r",? with args beginning with:.*", re.DOTALL)

_LOGIN = re.compile(r"://[^\s@]*@")


def hide(error: BaseException | None, secrets: Sequence[str]) -> None:
    """Remove ``secrets`` from the messages of ``error``, its causes and its contexts."""
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
    """Return whether the server is no longer the primary, so its connection has to be closed."""
    return redis.ReadOnlyError in map(type, replies)


def connection_options(options: dict[str, Any], connect_timeout: float, timeout: float, retry: Any) -> dict[str, Any]:
    """Return the keyword arguments of a connection with the user's ``options``, and without retries."""
    return options | {
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
    """Return the pieces to send, each in a separate call."""
    pieces: list[bytes] = []
    for command in commands:
        pieces += [command] if isinstance(command, bytes) else connection.pack_command(*command)
    return [b"".join(pieces)] if len(pieces) > 1 and sum(map(len, pieces)) < _JOIN_BYTES else pieces


def _server_id(run_id: str, replies: Sequence[Any], at: float) -> ServerId:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    replication, *rest = replies
    if _field(replication, "role") != "master":
        raise redis.ReadOnlyError("READONLY the server is a replica; give the address of the primary")
    identity = f"redis:{_own_id(replication, 'master_replid')}:{run_id}"
    for cluster in rest:
        identity += f":{_field(cluster, 'cluster_my_epoch')}"
    return ServerId(identity, run_id, at)


def _field(info: bytes, name: str) -> str:
    _, found, rest = (b"\n" + info).partition(f"\n{name}:".encode())
    if not found:
        raise redis.ResponseError(f"the reply to INFO has no {name}")
    return rest.partition(b"\n")[0].decode(errors="replace").strip()


def _own_id(info: bytes, name: str) -> str:
    """Return an ID of the server; raises :class:`ResponseError` for one that all servers have, as behind a proxy."""
    found = _field(info, name)
    if not found.strip("0"):
        raise redis.ResponseError(f"the {name} in the reply to INFO is {found!r}, so a failover would go unnoticed")
    return found


def _unavailable(error: Exception, clustered: bool) -> StoreError:
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        return StoreUnavailable("the server did not answer in time")
    if isinstance(error, redis.AuthenticationError):
        return StoreUnavailable(f"the server refused the login: {error}")
    if isinstance(error, (redis.ConnectionError, OSError)) and not isinstance(error, redis.BusyLoadingError):
        return StoreUnavailable(f"no connection to the server: {error}")
    if not isinstance(error, redis.RedisError):  # as of the project's credential provider, or of a name that is none
        return StoreUnavailable(f"no connection to the server: {type(error).__name__}")
    word = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), str(error).partition(" ")[0])
    if isinstance(error, redis.exceptions.AskError) or word in _MOVED:  # and MovedError, which is one
        if not clustered:
            return StoreError("the server is a node of a Cluster: set 'cluster': True in the OPTIONS of the store")
        return StoreError("the key's slot was moved to another node or is being moved; rebuild the filter after that")
    if word in _TEMPORARY:
        return StoreUnavailable(f"the server refuses commands: {word}")
    return StoreError(f"the server answered with an error: {error}")
