"""A small TCP proxy that fails the way networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time


class Proxy:
    """Forwards to a port of this host. ``mode`` may change at any time, also for open connections.

    ``pass``; ``reset``: hang up with RST; ``hole``: take everything, answer nothing; ``late``: keep what the server
    answers until the mode is another; ``slow``: 200 ms each way back. ``refuse()`` closes the listening socket, so that
    the kernel refuses connections. ``clients`` are the ports that connected, in their order, and
    ``received`` counts the pieces that came from them.
    """

    def __init__(self, port: int) -> None:
        self._answers_pass = threading.Event()
        self.mode = "pass"
        self.clients: list[int] = []
        self.received = 0
        self._counting = threading.Lock()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = mode
        if mode == "late":
            self._answers_pass.clear()
        else:
            self._answers_pass.set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def refuse(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def reset(self) -> None:
        """Hang up everywhere, and on whoever comes."""
        self.mode = "reset"
        self.cut()

    def mend(self) -> None:
        """Forward again, on new connections too."""
        self.mode = "pass"
        if self._listener.fileno() == -1:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Reset every open connection."""
        for each in list(self._open):
            self._reset(each)

    def close(self) -> None:
        self.mode = "pass"  # nobody waits in vain
        self.refuse()

    def _reset(self, each: socket.socket) -> None:
        """Have ``each`` closed with RST: by the threads that read from it, if there are any.

        Closed under a thread's hands its number could be another connection's by the time the thread reads.
        """
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.shutdown(socket.SHUT_RDWR)
        if each not in self._open:
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, (_, port) = listener.accept()
            except OSError:
                return
            self.clients.append(port)
            if self.mode == "reset":
                self._reset(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                self._reset(client)
                continue
            self._open |= {client, server}
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(server, client, True), daemon=True)
        back.start()
        self._pump(client, server, False)
        back.join()
        self._open -= {client, server}
        self._reset(client)
        self._reset(server)

    def _pump(self, one: socket.socket, other: socket.socket, back: bool) -> None:
        try:
            while data := one.recv(1 << 16):
                if not back:
                    with self._counting:
                        self.received += 1
                if self.mode == "hole":
                    continue
                if self.mode == "slow" and back:
                    time.sleep(0.2)
                if back:
                    self._answers_pass.wait()
                other.sendall(data)
        except OSError:
            pass
        finally:
            self._reset(one)
            self._reset(other)
