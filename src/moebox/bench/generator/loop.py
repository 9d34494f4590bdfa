"""The load generator: one thread, one epoll, many streams.

One more event like the one before is taken in `hot_path`; heads, ends and oddities are looked at in `requests`, when
there is time. The kernel notes when bytes come, so the loop may be late without the figures being so: when many streams
are busy it even naps between polls. How late it is, is measured all the time.
"""

import resource
import select
import time
from collections.abc import Callable

from moebox.bench.generator.connection import Stage
from moebox.bench.generator.connections import Connections
from moebox.bench.generator.hot_path import HotPath
from moebox.bench.generator.job import LATE, LONGEST_NAP_S, Gauge, Job, Progress
from moebox.bench.generator.requests import Requests
from moebox.bench.generator.schedule import Schedule
from moebox.bench.samples import Samples
from moebox.bench.workloads import Source
from moebox.stream import sockets

TICK = 500_000_000  # ns between looks at timeouts, the clocks and ourselves
GLANCE = 50_000_000  # ns between looks at how busy the streams are
BUSY_READS = 2000  # reads a second from which on napping pays
BATCH = 256  # sockets taken from one poll
MOST_BACKLOG = 4096  # replies beyond which looking at them does not wait for a quiet moment: bounds memory
AT_ONCE = 64  # requests sent before looking at the network again


class Loop:
    """Drives one worker's share of the load."""

    def __init__(self, job: Job, source: Source, *, report: Callable[[Progress], None]) -> None:
        self.job = job
        self.gauge = Gauge()
        self._report = report
        self._poller = select.epoll()
        self._schedule = Schedule(job, source)
        self._hot = HotPath(late=LATE)
        context = sockets.tls_context(job.target) if job.target.tls else None
        self._connections = Connections(self._poller, context, self._hot)
        self._requests = Requests(job, self._schedule, self._connections, self._hot, self.gauge)
        self._nap_s = 0.0
        self._ready = 0  # sockets of the last poll

    @property
    def samples(self) -> Samples:
        """What became of every request so far."""
        return self._requests.samples

    def connect(self) -> None:
        """Open the connections of a closed loop before the clock starts; failures show when they are used."""
        for number in range(0 if self._schedule.open else self._schedule.connections):
            self._requests.dial(self._connections.open())
            self._schedule.prepare()
            if number % 256 == 255:
                self._await_connections(min(2.0, self.job.load.timeout_s))
        self._await_connections(min(10.0, self.job.load.timeout_s))

    def run(self, zero: int, wall: float, stopped: Callable[[], bool]) -> None:
        """Drive the load from `zero` (CLOCK_MONOTONIC ns) until it is done or `stopped` says so."""
        self.samples.zero, self.samples.wall = zero, wall
        requests, schedule, gauge = self._requests, self._schedule, self.gauge
        requests.idle = list(reversed(self._connections.all))
        schedule.start(zero)
        usage = time.process_time()
        began = tick = time.monotonic_ns()
        cpu_before, glance, reads_before = usage, began, 0
        while schedule.pending or self._in_flight():
            self._poll()
            now = time.monotonic_ns()
            if now - glance >= GLANCE:
                self._nap_s = self._nap((gauge.reads - reads_before) * 1e9 / (now - glance))
                glance, reads_before = now, gauge.reads
            if now - tick >= TICK:
                share = (time.process_time() - cpu_before) * 1e9 / (now - tick)
                gauge.peak_cpu_share = max(gauge.peak_cpu_share, share)
                tick, cpu_before = now, time.process_time()
                self._look_around(now, share)
                if stopped():
                    requests.stop()
                    break
            schedule.tick(now)
            self._dispatch(now)
            self._work_off(now)
        while requests.backlog:
            requests.look_at(requests.backlog.popleft())
        gauge.cpu_s = time.process_time() - usage
        gauge.wall_s = (time.monotonic_ns() - began) / 1e9
        gauge.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._close()

    def _close(self) -> None:
        for connection in self._connections.all:
            connection.close()
        self._poller.close()

    def _nap(self, reads_per_s: float) -> float:
        """Seconds to wait between polls: a quarter of the mean gap between a stream's reads, so that few coincide."""
        if reads_per_s < BUSY_READS or self.gauge.clock != "kernel":
            return 0.0
        return min(LONGEST_NAP_S, self._in_flight() / reads_per_s / 4)

    def _poll(self) -> None:
        """Wait for the network once, and read what has come."""
        hot, requests, by_fd = self._hot, self._requests, self._connections.by_fd
        patience, asked = self._patience(), time.monotonic_ns()
        ready = self._poller.poll(patience, BATCH)
        now = time.monotonic_ns()
        self._ready = len(ready)
        oldest = hot.read(ready, now)
        for fd, mask, data, came in hot.odd:
            connection = by_fd[fd]
            if data is not None:
                hot.streams[fd] = None
                requests.came(connection, data, came)
            elif mask == select.EPOLLIN and connection.quiet:
                came = requests.read(connection)
                oldest = min(oldest or came, came or oldest)
            else:
                requests.event(connection, mask)
            hot.read_at[fd] = now
        kept_away = now - asked > patience * 1e9 + LATE / 2  # after SIGCONT, Python's poll returns without a look
        if self._ready < BATCH and not kept_away:  # otherwise some were left unread
            hot.polled = now
        if ready:
            self.gauge.note(len(ready), time.monotonic_ns() - oldest if oldest else 0)

    def _dispatch(self, now: int) -> None:
        requests, schedule, connections = self._requests, self._schedule, self._connections
        for _ in range(AT_ONCE):
            if not schedule.waiting or not (requests.idle or len(connections.all) < schedule.connections):
                return
            due = schedule.next_due_now(now)
            if due is not None:
                at, conversation = due
                requests.assign(requests.idle.pop() if requests.idle else connections.open(), conversation, at)

    def _work_off(self, now: int) -> None:
        """Look at what was read for as long as a nap would last, and nap for the rest of it."""
        requests, schedule = self._requests, self._schedule
        backlog = requests.backlog
        rushed = self._ready == BATCH or bool(schedule.waiting)
        until = now + (0 if rushed else int(self._nap_s * 1e9))
        spare = 32 if len(backlog) > MOST_BACKLOG else 1 + self._ready // 8  # a little at a time, even in a rush
        while backlog and (spare > 0 or time.monotonic_ns() < until):
            requests.look_at(backlog.popleft())
            spare -= 1
        while time.monotonic_ns() < until and schedule.prepare():
            pass
        left = until - time.monotonic_ns()
        if left > 0 and not schedule.waiting:
            time.sleep(left / 1e9)

    def _look_around(self, now: int, share: float) -> None:
        """Twice a second: the clocks, timeouts, and a word to whoever watches."""
        requests, connections = self._requests, self._connections.all
        before, self._hot.offset = self._hot.offset, sockets.clock_offset()
        self.gauge.note_clocks(self._hot.offset - before)
        for connection in connections:
            if connection.conversation is not None:
                requests.check(connection, now)
        under_way = sum(len(each.recorder.times) for each in connections if each.conversation is not None)
        ttft, requests.ttft = requests.ttft, []
        self._report(
            Progress(
                worker=self.job.worker,
                sent=requests.sent,
                ended=len(self.samples),
                failed=requests.failed,
                in_flight=self._in_flight(),
                tokens=len(self.samples.time) + under_way,
                ttft_ms=sum(ttft) / len(ttft) / 1e6 if ttft else 0.0,
                cpu_share=share,
            )
        )

    def _in_flight(self) -> int:
        return len(self._connections.all) - len(self._requests.idle)

    def _patience(self) -> float:
        """Seconds the poll may wait.

        Not long while anything is in flight: a process that was kept from running looks like one that was waiting, and
        only who looks often knows that it did not look.
        """
        now, schedule = time.monotonic_ns(), self._schedule
        due = now if schedule.waiting and self._requests.idle else schedule.next_due
        longest = LONGEST_NAP_S if self._in_flight() else TICK / 1e9
        return min(longest, max(0.0, (due - now) / 1e9)) if due else longest

    def _await_connections(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if not any(each.stage in (Stage.CONNECTING, Stage.HANDSHAKE) for each in self._connections.all):
                return
            for fd, mask in self._poller.poll(0.05, BATCH):
                self._requests.event(self._connections.by_fd[fd], mask)
