"""All connections of a load generator, and by file descriptor what reading them takes."""

import select
import ssl

from moebox.bench.flow import Flow
from moebox.bench.lane import Lane


class Lanes:
    """The connections of one worker. Lists by descriptor are as long as the highest one so far, and longer."""

    def __init__(self, poller: select.epoll, context: ssl.SSLContext | None) -> None:
        self.all: list[Lane] = []
        self.nobody = Lane(-1, poller, None)
        self.by_fd: list[Lane] = []  # `nobody` where there is none
        self.flows: list[Flow | None] = []  # None where reading needs a closer look
        self.read: list[int] = []  # CLOCK_MONOTONIC ns at which it was last read empty, at least
        self._poller, self._context = poller, context

    def open(self) -> Lane:
        """One more, not connected yet."""
        lane = Lane(len(self.all), self._poller, self._context)
        self.all.append(lane)
        return lane

    def watch(self, lane: Lane) -> bool:
        """Find it by its descriptor from now on; False where the kernel does not stamp what comes."""
        if lane.fd < 0:
            return True
        missing = lane.fd + 64 - len(self.by_fd) if lane.fd >= len(self.by_fd) else 0
        self.by_fd += [self.nobody] * missing
        self.flows += [None] * missing
        self.read += [0] * missing
        self.by_fd[lane.fd] = lane
        return lane.kernel

    def drop(self, lane: Lane) -> None:
        """Hang up."""
        if lane.fd >= 0:
            self.by_fd[lane.fd], self.flows[lane.fd] = self.nobody, None
        lane.close()
        lane.quiet = lane.awaiting = False

    def flow(self, lane: Lane) -> None:
        """From here on, events like the one before may be taken without a look at anything else."""
        tape = lane.tape
        if tape.shape is not None and lane.quiet and not lane.got and lane.sock is not None and lane.context is None:
            self.flows[lane.fd] = (lane.sock, tape.shape, tape.times, tape.sizes, tape)
