"""PgBouncer in front of a PostgreSQL of the tests."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.support import servers
from tests.support.processes import end, spawn

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
MISSING = "" if PROGRAM else "no PgBouncer: make pgbouncer"
_NAME, _ADMINISTRATOR = "pooled", "administrator"


class PgBouncer:
    """It leads to the database of ``origin``, a ``DATABASES`` entry, with a ``pool_mode``."""

    def __init__(self, origin: dict[str, Any], pool_mode: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bloomguard-pgbouncer-", dir=servers.quick_folder()))
        servers.at_end(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.chmod(0o777)  # root becomes the user of the server, whose socket is its own
        self._mode, self._user, self._port = pool_mode, origin["USER"], servers.free_port()
        self._configure(origin)
        user = ["-u", Path(origin["HOST"]).owner()] if getpass.getuser() == "root" else []
        self._child = spawn([PROGRAM, "-q", *user, self._folder / "ini"], stderr=subprocess.PIPE, text=True)
        servers.at_end(self.stop)
        servers.wait_for(self._port, self._child)

    def _configure(self, origin: dict[str, Any]) -> None:
        place = f"host={origin['HOST']} port={origin['PORT'] or 5432} dbname={origin['NAME']} user={origin['USER']}"
        options = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": _ADMINISTRATOR,
            "pool_mode": self._mode,
            "server_round_robin": 1,  # so that each transaction has another session than the last
            "logfile": self._folder / "log",
        }
        lines = ["[databases]", f"{_NAME} = {place}", "[pgbouncer]", *(f"{key} = {options[key]}" for key in options)]
        (self._folder / "ini").write_text("\n".join(lines))

    @property
    def settings(self) -> dict[str, Any]:
        """Django's ``DATABASES`` entry."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _NAME,
            "USER": self._user,
            "HOST": "127.0.0.1",
            "PORT": str(self._port),
        }

    def lead_to(self, origin: dict[str, Any]) -> None:
        """Lead to another database from the next transaction, or session, on."""
        self._configure(origin)
        with psycopg.connect(
            host="127.0.0.1", port=self._port, dbname="pgbouncer", user=_ADMINISTRATOR, autocommit=True
        ) as connection:
            connection.pgconn.exec_(b"RELOAD")

    def stop(self) -> None:
        """End it, if it has not ended."""
        end(self._child)
        if self._child.stderr:
            self._child.stderr.close()
