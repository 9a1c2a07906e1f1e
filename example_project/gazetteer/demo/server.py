"""The example under gunicorn, in one mode, for as long as a `with` block lasts."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.conf import settings

HOST = "127.0.0.1"
WORKERS = 2
START_SECONDS = 30
STOP_SECONDS = 5


@contextmanager
def serving(mode: str) -> Iterator[int]:
    """Yield the port of a server in this mode.

    Raises RuntimeError when it doesn't answer within 30 s.
    """
    with socket.create_server((HOST, 0)) as listener:  # reserve a free port, so that there is no race for it
        port = listener.getsockname()[1]
        server = start(mode, listener)
    try:
        wait_until_ready(port)
        yield port
    finally:
        stop(server)


def start(mode: str, listener: socket.socket) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "gazetteer.demo.wsgi",
        "--config",
        "python:gazetteer.demo.gunicorn_conf",
    ]
    command += ["--bind", f"fd://{listener.fileno()}", "--workers", str(WORKERS)]
    environment = {"DJANGO_SETTINGS_MODULE": "config.settings_demo", "GAZETTEER_MODE": mode}
    return subprocess.Popen(
        command,
        cwd=settings.BASE_DIR,
        env=os.environ | environment,
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,  # never written to: EOF tells the server that this process has exited
        start_new_session=True,  # keep Ctrl-C from the server; this process stops it
    )


def wait_until_ready(port: int) -> None:
    """Ask for the home page. The listener takes the request at once; it is answered when a worker has started."""
    try:
        with socket.create_connection((HOST, port), START_SECONDS) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            status = connection.makefile("rb").readline()
    except OSError as error:
        raise RuntimeError(f"The server did not start: {error}") from error
    if b" 200 " not in status:
        raise RuntimeError(f"The server's first answer should be 200, but is {status!r}")


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Ask, wait, then kill what is left of its process group."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()
