"""Processes that ask over HTTP, one request after the other, and measure. Knows nothing of Django.

Clients and server share the machine's cores, so a request has to be cheap here: raw sockets, requests made before
the clock starts, and of the answers only what counts is read.
"""

import multiprocessing
import re
import signal
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from .traffic import Traffic

HOST = "127.0.0.1"
TIMEOUT = 30  # seconds, for a response of the server or a message of a client
REQUEST = b"GET /cities/%d/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
QUERIES = re.compile(rb"\r\nX-Guarded-Queries: (\d+)")
WORKER = re.compile(rb"\r\nX-Worker: (\d+)")
CONNECTS = 200  # attempts to reach a given worker


@dataclass
class Tally:
    """What one client measured. Index 0 of a pair is for absent IDs, 1 for existing ones."""

    requests: list[int] = field(default_factory=lambda: [0, 0])
    queries: list[int] = field(default_factory=lambda: [0, 0])
    wrong: list[int] = field(default_factory=lambda: [0, 0])  # responses with another status than 404 or 200
    false_404s: int = 0
    seconds: float = 0.0
    latencies: "array[float]" = field(default_factory=lambda: array("d"))  # seconds


def attack(port: int, traffic: Traffic, warm_up: Traffic, *, clients: int, workers: int, seconds: float) -> list[Tally]:
    """Let so many clients send the traffic at once, for so many seconds or until it is used up.

    Raises RuntimeError when a client fails.
    """
    shares = [(part % workers, warm_up.share(part, clients), traffic.share(part, clients)) for part in range(clients)]
    with processes([(port, *share, seconds) for share in shares]) as pipes:
        try:
            for pipe in pipes:
                hear(pipe, TIMEOUT)  # it is ready: connected, warm, its requests prepared
            for pipe in pipes:
                pipe.send("go")
            return [hear(pipe, seconds + TIMEOUT) for pipe in pipes]
        except (EOFError, OSError) as error:
            raise RuntimeError(f"A client of the demo failed: {error!r}") from error


def hear(pipe: "Connection[str, Tally]", timeout: float) -> Tally:
    if not pipe.poll(timeout):
        raise TimeoutError(f"no word from it for {timeout:.0f} s; is the machine busy with other work?")
    return pipe.recv()


@contextmanager
def processes(arguments: list[tuple[int, int, Traffic, Traffic, float]]) -> "Iterator[list[Connection[str, Tally]]]":
    context = multiprocessing.get_context("spawn")  # a fork would share the database connection and more
    started = []
    try:
        for each in arguments:
            ours, theirs = context.Pipe()
            process = context.Process(target=client, args=(theirs, *each), daemon=True)
            process.start()
            theirs.close()  # so that our end reads EOF when the client has exited
            started.append((process, ours))
        yield [pipe for _, pipe in started]
    finally:
        for process, _ in started:
            process.terminate()
        for process, _ in started:
            process.join()


def client(
    pipe: "Connection[Tally, str]", port: int, worker: int, warm_up: Traffic, traffic: Traffic, seconds: float
) -> None:
    """What one process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    requests = [REQUEST % id_ for id_ in traffic.ids]
    with connect(port, worker) as connection:
        ask(connection, [REQUEST % id_ for id_ in warm_up.ids], warm_up.exists, TIMEOUT)
        pipe.send(Tally())
        pipe.recv()
        pipe.send(ask(connection, requests, traffic.exists, seconds))


def connect(port: int, worker: int) -> socket.socket:
    """A connection to that worker of the server.

    A worker keeps whatever it accepts, so that by chance one would do all the work and the others none: the clients
    spread themselves evenly, as a proxy in front would spread them.
    """
    for _ in range(CONNECTS):
        connection = socket.create_connection((HOST, port), TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(REQUEST % 1)
        named = WORKER.search(response(connection)[0])
        if named and int(named[1]) == worker:
            return connection
        connection.close()
    raise ConnectionError(f"None of {CONNECTS} connections reached the server's worker {worker}.")


def ask(connection: socket.socket, requests: list[bytes], exists: bytes, seconds: float) -> Tally:
    tally = Tally()
    clock = time.perf_counter
    begin = sent = clock()
    for request, existing in zip(requests, exists):
        connection.sendall(request)
        status, queries = answer(connection)
        now = clock()
        tally.latencies.append(now - sent)
        tally.requests[existing] += 1
        tally.queries[existing] += queries
        if status != (b"200" if existing else b"404"):
            tally.wrong[existing] += 1
            tally.false_404s += status == b"404"
        if now - begin > seconds:
            break
        sent = clock()
    tally.seconds = clock() - begin
    return tally


def answer(connection: socket.socket) -> tuple[bytes, int]:
    """Read one response. Returns its status and how many queries it cost the guarded tables."""
    data, end = response(connection)
    queries = QUERIES.search(data, 0, end)
    if queries is None:
        raise ConnectionError(f"The server doesn't count its queries: {data[:end]!r}")
    return data[9:12], int(queries[1])


def response(connection: socket.socket) -> tuple[bytes, int]:
    """Read one response. Returns all of it, and where its head ends."""
    data = receive(connection)
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += receive(connection)
    if length := LENGTH.search(data, 0, end):
        size = end + 4 + int(length[1])
        while len(data) < size:
            data += receive(connection)
    else:  # in chunks
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += receive(connection)
    return data, end


def receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("The server closed the connection.")
    return data
