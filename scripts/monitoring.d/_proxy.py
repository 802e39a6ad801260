"""A proxy in front of Postgres that can cut its connections."""
import contextlib
import socket
import threading


class Proxy:
    """Forwards connections of the socket `path` to the socket `target` unless it is cut."""

    def __init__(self, path, target):
        self.target, self.is_cut, self.open = target, False, set()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(128)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.is_cut:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.target))
            self.open |= {client, server}
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.discard(source)

    @contextlib.contextmanager
    def cut(self):
        """Closes all connections and rejects new ones for the duration of a `with` block."""
        self.is_cut = True
        for end in list(self.open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self.is_cut = False
