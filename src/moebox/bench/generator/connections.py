"""All connections of a worker, found by file descriptor."""

import select
import ssl

from moebox.bench.generator.connection import Connection
from moebox.bench.generator.hot_path import HotPath


class ConnectionPool:
    """The connections of one worker. Lists by descriptor are as long as the highest one so far, and longer."""

    def __init__(self, poller: select.epoll, context: ssl.SSLContext | None, hot: HotPath) -> None:
        self.all: list[Connection] = []
        self.placeholder = Connection(-1, poller, None)
        self.by_fd: list[Connection] = []  # `nobody` where there is none
        self._hot = hot
        self._poller, self._context = poller, context

    def add_connection(self) -> Connection:
        """One more, not connected yet."""
        connection = Connection(len(self.all), self._poller, self._context)
        self.all.append(connection)
        return connection

    def register_descriptor(self, connection: Connection) -> bool:
        """Find it by its descriptor from now on; False where the kernel does not stamp what comes."""
        fd = connection.fd
        if fd < 0:
            return True
        missing = fd + 64 - len(self.by_fd) if fd >= len(self.by_fd) else 0
        self.by_fd += [self.placeholder] * missing
        self._hot.add_descriptors(missing)
        self.by_fd[fd] = connection
        return connection.has_kernel_times

    def drop_connection(self, connection: Connection) -> None:
        """Hang up."""
        if connection.fd >= 0:
            self.by_fd[connection.fd], self._hot.streams[connection.fd] = self.placeholder, None
        connection.close()
        connection.can_defer = connection.awaits_head = False

    def mark_hot(self, connection: Connection) -> None:
        """From here on, events like the one before may be taken without a look at anything else."""
        recorder = connection.recorder
        if recorder.template is None or connection.sock is None or connection.context is not None:
            return
        if connection.can_defer and not connection.segments:
            self._hot.add_stream(connection.fd, connection.sock, recorder)

    def mark_cold(self, connection: Connection) -> None:
        """What comes next on it needs a closer look."""
        if connection.fd >= 0:
            self._hot.streams[connection.fd] = None
