"""An HTTP client that keeps a server busy, where there is no wrk: few system calls, and hardly any parsing."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator
from itertools import count

CLIENTS = 2
CONNECTIONS = 4


def requests_per_second(port: int, path: str, seconds: float, status: bytes) -> float:
    """How many GET requests of ``path % number`` a second the server answers, all of them with ``status``.

    Two processes with four connections each, which are kept alive where the server does so. Raises
    :class:`RuntimeError` at any other answer.
    """
    with multiprocessing.get_context("spawn").Pool(CLIENTS) as pool:
        jobs = [(port, path, seconds, status, client) for client in range(CLIENTS)]
        return sum(pool.starmap(_client, jobs))


def _client(port: int, path: str, seconds: float, status: bytes, client: int) -> float:
    selector = selectors.DefaultSelector()
    numbers = count(client * 10_000_000 + 100_001)  # rows have smaller ones
    for _ in range(CONNECTIONS):
        connection = _Connection(port, path, status, numbers)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for key, _ in selector.select(timeout=1):
            connection = key.data
            if connection.receive():
                done += 1
                if connection.is_closed:
                    selector.unregister(connection.socket)
                    connection.open()
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.send()
    return done / (time.perf_counter() - began)


class _Connection:
    def __init__(self, port: int, path: str, status: bytes, numbers: Iterator[int]) -> None:
        self._port, self._path, self._status, self._numbers = port, path, status, numbers
        self.open()
        self.send()

    def open(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_closed = False

    def send(self) -> None:
        self._got = b""
        path = self._path % next(self._numbers)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: testserver\r\nUser-Agent: bench\r\n\r\n".encode())

    def receive(self) -> bool:
        """Read what is there; whether that was the rest of an answer."""
        data = self.socket.recv(65536)
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            if not data:
                raise RuntimeError(f"the connection was closed after {self._got!r}")
            return False
        if not head.startswith(b"HTTP/1.1 " + self._status):
            raise RuntimeError(f"an answer was {self._got[:200]!r}")
        head = head.lower()
        length = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return False
        if b"\r\nconnection: close" in head:
            self.socket.close()
            self.is_closed = True
        return True
