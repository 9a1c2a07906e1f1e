"""A real MariaDB for the tests, from the system, with a folder and a socket of its own. No service is touched.

``BLOOMGUARD_TEST_MYSQL``: the path of a ``mysqld``, which then takes its place.
"""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.processes import spawn
from tests.support.servers import at_end, quick_folder, until

#: Debian keeps servers where only root's PATH leads to.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
#: A ``mysqld`` to use instead of MariaDB.
MYSQL = os.environ.get("BLOOMGUARD_TEST_MYSQL", "")
#: Marks a test of SQL that MySQL does not have.
mariadb_only = pytest.mark.skipif(bool(MYSQL), reason="MySQL does not have it")
mysql_only = pytest.mark.skipif(not MYSQL, reason="MariaDB does not have it")
#: Their collations compare different texts as equal, but for this one.
EXACT = "utf8mb4_0900_bin" if MYSQL else "utf8mb4_nopad_bin"


@functools.cache
def is_missing() -> str:
    """How to install what the tests on MariaDB need; empty if it is there."""
    server = MYSQL or all(shutil.which(name, path=_PATH) for name in ("mariadbd", "mariadb-install-db"))
    return "" if server and find_spec("MySQLdb") else "no MariaDB server or no mysqlclient: make mariadb"


class MariaDB:
    """A MariaDB of our own. ``again()`` starts it anew where it was, as after ``kill()``, a ``kill -9``."""

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="bloomguard-mariadb-", dir=quick_folder())
        # Not in the folder, whose name may be too long for a socket.
        self._sockets = tempfile.mkdtemp(prefix="bgm-")
        self._options = options
        at_end(self.stop)
        self._user = f"--user={getpass.getuser()}"
        self._data = f"--datadir={self._folder}/data"
        if MYSQL:
            self._server, install = MYSQL, [MYSQL, "--no-defaults", "--initialize-insecure", self._data, self._user]
        else:
            self._server, install = self._program("mariadbd"), [self._program("mariadb-install-db"), "--no-defaults"]
            install += [self._data, self._user, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.again()

    @property
    def _of_its_kind(self) -> list[str]:
        if not MYSQL:
            return ["--innodb-log-file-size=64M"]
        return ["--innodb-redo-log-capacity=64M", "--loose-mysqlx=OFF", "--skip-log-bin", "--secure-file-priv="]

    @staticmethod
    def _program(name: str) -> str:
        found = shutil.which(name, path=_PATH)
        assert found is not None, is_missing()
        return found

    def again(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._socket)
        self._process = spawn(
            [
                *(self._server, "--no-defaults", self._data, self._user, f"--socket={self._socket}"),
                *("--skip-networking", "--innodb-flush-method=fsync", *self._of_its_kind),
                # At its start a server deletes the temporary tables of all others that have them in the same folder.
                *(f"--pid-file={self._folder}/pid", f"--tmpdir={self._folder}"),
                *(f"--log-error={self._folder}/log.err", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers)

    @property
    def _socket(self) -> str:
        return os.path.join(self._sockets, "socket")

    def _answers(self) -> bool:
        import MySQLdb

        if self._process.poll() is not None:
            raise AssertionError(self._log())
        try:
            self.run("SELECT 1")
        except MySQLdb.OperationalError:
            return False
        return True

    def _log(self) -> str:
        with open(os.path.join(self._folder, "log.err"), errors="replace") as log:
            return log.read()[-4_000:]

    @property
    def settings(self) -> dict[str, Any]:
        """Django's ``DATABASES`` entry."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "bloomguard",
            "USER": "root",
            "HOST": self._socket,
            "OPTIONS": {"charset": "utf8mb4"},
            "TEST": {"CHARSET": "utf8mb4", "COLLATION": EXACT},
        }

    def database(self, name: str) -> dict[str, Any]:
        """Django's ``DATABASES`` entry for a new database."""
        self.run(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE {EXACT}")
        return {**self.settings, "NAME": name}

    def run(self, sql: str) -> Any:
        """The first value of one statement, committed at once."""
        import MySQLdb

        connection = MySQLdb.connect(unix_socket=self._socket, user="root", autocommit=True)
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            return (cursor.fetchone() or [None])[0] if cursor.description else None
        finally:
            connection.close()

    def kill(self) -> None:
        """As ``kill -9`` does it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if hasattr(self, "_process"):
            if self._process.poll() not in (None, -signal.SIGKILL):  # by itself: its log says why
                sys.stderr.write(f"{self._server} has ended with {self._process.returncode}\n{self._log()}")
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._sockets, ignore_errors=True)


@functools.cache
def mariadb() -> dict[str, Any]:
    """Django's ``DATABASES`` entry for the MariaDB that the tests share, which waits for no disk."""
    return MariaDB("--innodb-flush-log-at-trx-commit=0").settings
