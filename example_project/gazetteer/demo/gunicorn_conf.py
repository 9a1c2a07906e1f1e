"""How gunicorn runs the example in `manage.py demo`: the same for every mode."""

import os
import signal
import threading
from typing import Any

# Keeps the clients' connections open, as it would those of a proxy in front of it. One thread a worker: there
# are as many workers as the smallest machine has cores, and more threads would only wait for each other.
worker_class = "gthread"
threads = 1
keepalive = 60
loglevel = "warning"
graceful_timeout = 1  # the clients have exited by then


def post_worker_init(worker: Any) -> None:
    """Tell the worker its number, from 0, and stop the server when the demo is gone.

    Even if it was killed: then its end of our stdin is closed.
    """
    os.environ["GAZETTEER_WORKER"] = str(worker.age - 1)
    threading.Thread(target=stop_at_end_of_stdin, args=[worker.ppid], daemon=True).start()


def stop_at_end_of_stdin(arbiter: int) -> None:
    os.read(0, 1)
    os.kill(arbiter, signal.SIGTERM)
