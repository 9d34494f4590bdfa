"""The event loop of the load generator: one thread, one epoll, many streams.

Events like the previous one are read in `hot_path`; heads, ends and everything unusual are handled in `requests`, when
there is time. The kernel timestamps arriving bytes, so the loop may be late without affecting the figures: when many
streams are busy it even naps between polls. Its lag is measured all the time.
"""

import resource
import select
import time
from collections.abc import Callable

from moebox.bench.generator.connection import ConnectionPool, ConnectionStage
from moebox.bench.generator.hot_path import HotPath
from moebox.bench.generator.job import LATE_NS, MAX_NAP_S, LoadJob, LoadProgress, WorkerGauge
from moebox.bench.generator.requests import RequestTracker
from moebox.bench.generator.schedule import LoadSchedule
from moebox.bench.workloads import ConversationSource
from moebox.stream import sockets

TICK_NS = 500_000_000  # between checks of timeouts, clocks and the worker itself
NAP_UPDATE_NS = 50_000_000  # between updates of the nap's length
MIN_READS_TO_NAP = 2000  # reads a second from which on naps pay
POLL_BATCH = 256  # sockets taken from one poll
MAX_BACKLOG = 4096  # replies beyond which parsing does not wait for a quiet moment: bounds memory
MAX_SENDS = 64  # requests sent before the next poll


class LoadLoop:
    """Runs one worker's share of the load."""

    def __init__(self, job: LoadJob, source: ConversationSource, *, report: Callable[[LoadProgress], None]) -> None:
        self.job = job
        self.gauge = WorkerGauge()
        self._report = report
        self._poller = select.epoll()
        self._schedule = LoadSchedule(job, source)
        self._hot = HotPath(late_ns=LATE_NS)
        self._connections = ConnectionPool(self._poller, sockets.tls_context(job.address), self._hot)
        self._requests = RequestTracker(job, self._schedule, self._connections, self._hot, self.gauge)
        self.samples = self._requests.samples
        self._nap_s = 0.0
        self._ready_count = 0  # sockets of the last poll

    def open_connections(self) -> None:
        """Open the connections of a closed loop before the clock starts; failures show when they are used."""
        for number in range(0 if self._schedule.is_open_loop else self._schedule.max_connections):
            self._requests.open_connection(self._connections.add_connection())
            self._schedule.prepare_request()
            if number % 256 == 255:
                self._wait_for_connections(min(2.0, self.job.load.timeout_s))
        self._wait_for_connections(min(10.0, self.job.load.timeout_s))

    def _wait_for_connections(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        pending = (ConnectionStage.CONNECTING, ConnectionStage.HANDSHAKE)
        while time.monotonic() < until:
            if not any(connection.stage in pending for connection in self._connections.all):
                return
            for fd, mask in self._poller.poll(0.05, POLL_BATCH):
                self._requests.handle_event(self._connections.by_fd[fd], mask)

    def run(self, zero: int, wall: float, should_stop: Callable[[], bool]) -> None:
        """Send the load from `zero` (CLOCK_MONOTONIC ns) until it is done or `should_stop` returns True."""
        self.samples.zero, self.samples.wall = zero, wall
        requests, schedule, gauge = self._requests, self._schedule, self.gauge
        requests.idle = list(reversed(self._connections.all))
        schedule.start(zero)
        usage = time.process_time()
        began = tick = time.monotonic_ns()
        cpu_before, nap_updated, reads_before = usage, began, 0
        while schedule.waiting or schedule.next_timer or self._in_flight():
            self._poll_once()
            now = time.monotonic_ns()
            if now - nap_updated >= NAP_UPDATE_NS:
                # A quarter of the mean gap between a stream's reads, so that few events coincide.
                reads_per_s = (gauge.reads - reads_before) * 1e9 / (now - nap_updated)
                naps = reads_per_s >= MIN_READS_TO_NAP and gauge.clock == "kernel"
                self._nap_s = min(MAX_NAP_S, self._in_flight() / reads_per_s / 4) if naps else 0.0
                nap_updated, reads_before = now, gauge.reads
            if now - tick >= TICK_NS:
                share = (time.process_time() - cpu_before) * 1e9 / (now - tick)
                gauge.peak_cpu_share = max(gauge.peak_cpu_share, share)
                tick, cpu_before = now, time.process_time()
                self._check_and_report(now, share)
                if should_stop():
                    requests.cancel_all()
                    break
            schedule.queue_due(now)
            self._send_due(now)
            self._process_backlog(now)
        while requests.backlog:
            requests.process_item(requests.backlog.popleft())
        gauge.cpu_s = time.process_time() - usage
        gauge.wall_s = (time.monotonic_ns() - began) / 1e9
        gauge.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for connection in self._connections.all:
            connection.close()
        self._poller.close()

    def _in_flight(self) -> int:
        return len(self._connections.all) - len(self._requests.idle)

    def _poll_once(self) -> None:
        """Wait for the network once, and read what has arrived."""
        hot, requests, by_fd = self._hot, self._requests, self._connections.by_fd
        timeout, polled_from = self._poll_timeout_s(), time.monotonic_ns()
        ready = self._poller.poll(timeout, POLL_BATCH)
        now = time.monotonic_ns()
        self._ready_count = len(ready)
        oldest = hot.read_ready(ready, now)
        for fd, mask, data, came in hot.unusual:
            connection = by_fd[fd]
            if data is not None:
                hot.streams[fd] = None
                requests.handle_data(connection, data, came)
            elif mask == select.EPOLLIN and connection.can_defer:
                came = requests.read_stream(connection)
                oldest = min(oldest or came, came or oldest)
            else:
                requests.handle_event(connection, mask)
            hot.read_at[fd] = now
        overslept = now - polled_from > timeout * 1e9 + LATE_NS / 2  # after SIGCONT, Python's poll returns no events
        if self._ready_count < POLL_BATCH and not overslept:  # otherwise some streams were left unread
            hot.polled_at = now
        if ready:
            self.gauge.add_batch(len(ready), time.monotonic_ns() - oldest if oldest else 0)

    def _poll_timeout_s(self) -> float:
        """Return how long the poll may wait.

        Not long while anything is in flight: a process that was suspended looks like one that was waiting, and only
        frequent polls reveal that it was not.
        """
        now, schedule = time.monotonic_ns(), self._schedule
        due = now if schedule.waiting and self._requests.idle else schedule.next_timer
        longest = MAX_NAP_S if self._in_flight() else TICK_NS / 1e9
        return min(longest, max(0.0, (due - now) / 1e9)) if due else longest

    def _send_due(self, now: int) -> None:
        requests, schedule, connections = self._requests, self._schedule, self._connections
        for _ in range(MAX_SENDS):
            if not schedule.waiting or not (requests.idle or len(connections.all) < schedule.max_connections):
                return
            due = schedule.take_due(now)
            if due is not None:
                at, conversation = due
                connection = requests.idle.pop() if requests.idle else connections.add_connection()
                requests.assign_request(connection, conversation, at)

    def _process_backlog(self, now: int) -> None:
        """Parse deferred bytes and prepare requests for as long as a nap would last, and nap for the rest of it."""
        requests, schedule = self._requests, self._schedule
        backlog = requests.backlog
        rushed = self._ready_count == POLL_BATCH or bool(schedule.waiting)
        until = now + (0 if rushed else int(self._nap_s * 1e9))
        minimum = 32 if len(backlog) > MAX_BACKLOG else 1 + self._ready_count // 8  # a little, even in a rush
        while backlog and (minimum > 0 or time.monotonic_ns() < until):
            requests.process_item(backlog.popleft())
            minimum -= 1
        while time.monotonic_ns() < until and schedule.prepare_request():
            pass
        left = until - time.monotonic_ns()
        if left > 0 and not schedule.waiting:
            time.sleep(left / 1e9)

    def _check_and_report(self, now: int, share: float) -> None:
        """Check the clocks and timeouts, and report progress; twice a second."""
        requests, connections, hot = self._requests, self._connections.all, self._hot
        before, hot.offset = hot.offset, sockets.clock_offset()
        self.gauge.add_clock_drift(hot.offset - before)
        for connection in connections:
            requests.check_timeouts(connection, now)
        running = sum(len(each.request.recorder.times) for each in connections if each.request is not None)
        ttfts, requests.recent_ttfts = requests.recent_ttfts, []
        self._report(
            LoadProgress(
                worker=self.job.worker,
                ended=len(self.samples),
                failed=requests.failed,
                in_flight=self._in_flight(),
                tokens=len(self.samples.time) + running,
                ttft_ms=sum(ttfts) / len(ttfts) / 1e6 if ttfts else 0.0,
                cpu_share=share,
            )
        )
