"""The load generator: one thread, one epoll, many streams.

One more event like the one before is taken in `flow`; heads, ends and oddities are looked at here, when there is time.
The kernel notes when bytes come, so the loop may be late without the figures being so: when many streams are busy it
even naps between polls. How late it is, is measured all the time.
"""

import resource
import select
import time
from collections import deque
from collections.abc import Callable

from moebox.bench.ended import Ended, judge
from moebox.bench.flow import BUFFER, Odd, take
from moebox.bench.job import Gauge, Job, Progress
from moebox.bench.lane import Lane, Stage, opens_stream, overdue
from moebox.bench.lanes import Lanes
from moebox.bench.pace import Pace
from moebox.bench.samples import CANCELLED, COMPLETED, FAILED, Samples
from moebox.bench.talk import Talk
from moebox.bench.workloads import Source
from moebox.stream import dial

TICK = 500_000_000  # ns between looks at timeouts, the clocks and ourselves
GLANCE = 50_000_000  # ns between looks at how busy the streams are
LONGEST_NAP_S = 0.005  # keeps a closed loop's next request from being late by more than that
BUSY_READS = 2000  # reads a second from which on napping pays
BATCH = 256  # sockets taken from one poll
MOST_BACKLOG = 4096  # replies beyond which looking at them does not wait for a quiet moment: bounds memory
AT_ONCE = 64  # requests sent before looking at the network again
UNREAD = 32  # reads of one reply that may wait
EVENT_END = b"\n\n\r\n"  # the end of an event that ends with its chunk
STREAM_END = b"\r\n0\r\n\r\n"  # the end of a chunk and the last, empty one
BACK_OFF = 500_000_000  # ns before a lane asks again after a refusal (HTTP 429 or 503, or no connection)


class Loop:
    """Drives one worker's share of the load and keeps what it saw."""

    def __init__(self, job: Job, source: Source, *, tell: Callable[[Progress], None]) -> None:
        self.job, self.load = job, job.load
        self.tell = tell
        self.samples = Samples()
        self.gauge = Gauge()
        self.poller = select.epoll()
        self.pace = Pace(job, source)
        self._where = dial.addresses(job.target)
        self._context = dial.tls_context(job.target) if job.target.tls else None
        head = dial.head(job.target, job.path, length=-1, headers=job.headers, accept="text/event-stream")
        self._head = head.replace(b"%", b"%%").replace(b"Content-Length: -1", b"Content-Length: %d")
        self.lanes = Lanes(self.poller, self._context)
        self._idle: list[Lane] = []
        self._backlog: deque[Lane | Ended] = deque()  # read, to be looked at when there is time
        self._offset = dial.clock_offset()
        self._stopping = False
        self._nap_s = 0.0
        self._ready = self._polled = 0  # sockets of the last poll; when all that had come was read
        self._late = 2e9 * LONGEST_NAP_S  # ns unlooked at: from then on tokens that came apart may be read together
        self._sent = self._failed = 0
        self._ttft: list[int] = []

    def connect(self) -> None:
        """Open the connections of a closed loop before the clock starts; failures show when they are used."""
        for _ in range(0 if self.pace.open else self.pace.lanes):
            lane = self.lanes.open()
            lane.connect(*self._where[0])
            self._watch(lane)
            self.pace.prepare()
            if len(self.lanes.all) % 256 == 0:
                self._await_connections(2.0)
        self._await_connections(10.0)

    def run(self, zero: int, wall: float, stopped: Callable[[], bool]) -> None:
        """Drive the load from `zero` (CLOCK_MONOTONIC ns) until it is done or `stopped` says so."""
        self.samples.zero, self.samples.wall = zero, wall
        self._idle = list(reversed(self.lanes.all))
        self.pace.start(zero)
        usage = time.process_time()
        began = tick = time.monotonic_ns()
        cpu_before, glance, reads_before = usage, began, 0
        while self.pace.pending or self._in_flight():
            self._pump()
            now = time.monotonic_ns()
            if now - glance >= GLANCE:
                self._nap_s = self._nap((self.gauge.reads - reads_before) * 1e9 / (now - glance))
                glance, reads_before = now, self.gauge.reads
            if now - tick >= TICK:
                share = (time.process_time() - cpu_before) * 1e9 / (now - tick)
                self.gauge.peak_cpu_share = max(self.gauge.peak_cpu_share, share)
                tick, cpu_before = now, time.process_time()
                self._look_around(now, share)
                if not self._stopping and stopped():
                    self._stop()
                    break
            self.pace.tick(now)
            self._dispatch(now)
            self._work_off(now)
        while self._backlog:
            self._look_at(self._backlog.popleft())
        self.gauge.cpu_s = time.process_time() - usage
        self.gauge.wall_s = (time.monotonic_ns() - began) / 1e9
        self.gauge.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for lane in self.lanes.all:
            lane.close()
        self.poller.close()

    def _nap(self, reads_per_s: float) -> float:
        """Seconds to wait between polls: a quarter of the mean gap between a stream's reads, so that few coincide."""
        gap = self._in_flight() / reads_per_s if reads_per_s else 1.0
        self._late = max(2 * LONGEST_NAP_S, gap / 2) * 1e9
        if reads_per_s < BUSY_READS or self.gauge.clock != "kernel":
            return 0.0
        return min(LONGEST_NAP_S, gap / 4)

    def _pump(self) -> None:
        """Wait for the network once, and read what has come."""
        ready = self.poller.poll(self._patience(), BATCH)
        now = time.monotonic_ns()
        self._ready = len(ready)
        odd: list[Odd] = []
        oldest = take(ready, self.lanes.flows, self._offset, odd, self.lanes.read, now, self._polled, self._late)
        for fd, mask, data, came in odd:
            lane = self.lanes.by_fd[fd]
            if data is not None:
                self.lanes.flows[fd] = None
                self._came(lane, data, came)
            elif mask == select.EPOLLIN and lane.quiet:
                came = self._read(lane)
                oldest = min(oldest or came, came or oldest)
            else:
                self._event(lane, mask)
            self.lanes.read[fd] = now
        if self._ready < BATCH:  # otherwise some were left unread
            self._polled = now
        if ready:
            self.gauge.note(len(ready), time.monotonic_ns() - oldest if oldest else 0)

    def _read(self, lane: Lane) -> int:
        """Read a stream whose events are not known yet; when that came, 0 where nothing did."""
        try:
            data, side, _, _ = lane.recv(BUFFER, dial.SIDE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            self._lost(lane)
            return 0
        came = dial.stamp_of(side, self._offset, lane.sent)
        self._came(lane, data, came)
        return came

    def _came(self, lane: Lane, data: bytes, came: int) -> None:
        """Bytes in the middle of a plain stream, or its end."""
        got, since = lane.got, max(self._polled, self.lanes.read[lane.fd])
        if came - since < self._late:
            since = 0
        if got and data[-4:] == EVENT_END and len(got) < UNREAD:  # its beginning still waits to be looked at
            got.append((data, came, since))
        elif got or not lane.tape.quick(data, came, since):
            got.append((data, came, since))
            self._unusual(lane, data)
        else:
            self.lanes.flow(lane)
        if len(data) == BUFFER and lane.talk is not None:  # there may be more
            self._event(lane, select.EPOLLIN)

    def _unusual(self, lane: Lane, data: bytes) -> None:
        """What was just read is not one more event like the one before."""
        if not data:
            lane.got.pop()
            self._settle(lane)
            if lane.stage == Stage.BUSY:
                self._lost(lane)
        elif lane.awaiting and opens_stream(data):  # first tokens come to all at once: look at heads a little later
            lane.awaiting = False
            self._backlog.append(lane)
        elif data[-7:] == STREAM_END and b"[DONE]" in data:
            self._hand_over(lane)
        else:
            self._settle(lane)

    def _event(self, lane: Lane, mask: int) -> None:
        """Anything but plain bytes in the middle of a stream."""
        if lane is self.lanes.nobody:
            return
        if lane.stage == Stage.CONNECTING:
            self._up(lane, lane.connected(self.job.target.host))
            return
        if mask & select.EPOLLOUT and (reason := lane.send(b"")):
            self._lost(lane, reason)
            return
        if not mask & ~select.EPOLLOUT:
            return
        alive = lane.read(self._offset)
        while alive and mask & (select.EPOLLRDHUP | select.EPOLLHUP):
            alive = lane.read(self._offset)
        if lane.stage == Stage.HANDSHAKE and alive:
            self._up(lane, lane.shake_hands())
        elif lane.stage == Stage.BUSY:
            self._settle(lane)
            if not alive and lane.stage == Stage.BUSY:
                self._lost(lane)
        elif not alive:  # an idle connection the server gave up
            self.lanes.drop(lane)

    def _up(self, lane: Lane, reason: str) -> None:
        """A connection is up, or could not be made."""
        if reason:
            self._refused(lane, reason)
        elif lane.stage == Stage.IDLE and lane.talk is not None:
            self._begin(lane, lane.talk, lane.due)

    def _settle(self, lane: Lane) -> None:
        lane.settle()
        lane.quiet = lane.quiet and self._context is None
        if lane.tape.complete:
            self._finish(lane, time.monotonic_ns())
        else:
            self.lanes.flow(lane)

    def _lost(self, lane: Lane, reason: str = "") -> None:
        """The connection ended under a request."""
        talk, now = lane.talk, time.monotonic_ns()
        lane.settle()
        if not lane.fresh and talk is not None and not lane.tape.body.status and not lane.mark:
            # A kept connection may be closed just as it is used again: that is nobody's failure.
            due = lane.due
            self.lanes.drop(lane)
            self.gauge.retried += 1
            self._assign(lane, talk, due)
            return
        lane.tape.end(now)
        if reason and not lane.tape.error:
            lane.tape.error = reason
        self._finish(lane, now)

    def _refused(self, lane: Lane, reason: str) -> None:
        """No connection: the request it was for has failed."""
        if lane.talk is None:
            self.lanes.drop(lane)
            return
        lane.sent = lane.sent or lane.due
        lane.tape.error = reason
        self._finish(lane, time.monotonic_ns())

    def _finish(self, lane: Lane, now: int, *, outcome: int | None = None, reason: str = "") -> None:
        """A request is over, one way or another: keep it, and let its lane go on."""
        ended = self._ended(lane, now)
        outcome = self._keep(ended, outcome=outcome, reason=reason)
        refused = ended.tape.body.status in (0, 429, 503)
        if not (ended.tape.body.keep_alive and lane.stage == Stage.BUSY):
            self.lanes.drop(lane)
        self._free(lane)
        if not self._stopping:
            at = now + (BACK_OFF if refused else 0)
            self.pace.went(ended.talk, ended.text, well=outcome == COMPLETED, at=at)

    def _hand_over(self, lane: Lane) -> None:
        """[DONE] and the end of the response were read: the lane may go on at once, the reply be looked at later."""
        if lane.talk is None or lane.talk.keep or lane.closes:
            self._settle(lane)
            return
        now = time.monotonic_ns()
        ended = self._ended(lane, now)
        self._backlog.append(ended)
        lane.got = []
        self._free(lane)
        self.pace.went(ended.talk, "", well=True, at=now)

    def _ended(self, lane: Lane, now: int) -> Ended:
        assert lane.talk is not None
        return Ended(lane.tape, lane.got, lane.talk, lane.talk.turn, lane.due, lane.sent, now, lane.size)

    def _free(self, lane: Lane) -> None:
        if lane.stage == Stage.BUSY:
            lane.stage = Stage.IDLE
            self.lanes.flows[lane.fd] = None
        lane.talk, lane.fresh, lane.quiet, lane.awaiting = None, False, False, False
        self._idle.append(lane)

    def _keep(self, ended: Ended, *, outcome: int | None = None, reason: str = "") -> int:
        outcome = ended.keep(self.samples, outcome=outcome, reason=reason)
        self._failed += outcome != COMPLETED
        self.gauge.estimated += ended.tape.estimated
        if ended.tape.times:
            self._ttft.append(ended.tape.times[0] - ended.sent)
        return outcome

    def _work_off(self, now: int) -> None:
        """Look at what was read for as long as a nap would last, and nap for the rest of it."""
        rushed = self._ready == BATCH or bool(self.pace.waiting)
        until = now + (0 if rushed else int(self._nap_s * 1e9))
        spare = 32 if len(self._backlog) > MOST_BACKLOG else 1 + self._ready // 8  # a little at a time, even in a rush
        while self._backlog and (spare > 0 or time.monotonic_ns() < until):
            self._look_at(self._backlog.popleft())
            spare -= 1
        while time.monotonic_ns() < until and self.pace.prepare():
            pass
        left = until - time.monotonic_ns()
        if left > 0 and not self.pace.waiting:
            time.sleep(left / 1e9)

    def _look_at(self, item: Lane | Ended) -> None:
        if isinstance(item, Lane):
            item.look()
            self.lanes.flow(item)
        else:
            item.read()
            self._keep(item)

    def _dispatch(self, now: int) -> None:
        for _ in range(AT_ONCE):
            if not self.pace.waiting or not (self._idle or len(self.lanes.all) < self.pace.lanes):
                return
            taken = self.pace.take(now)
            if taken is not None:
                due, talk = taken
                self._assign(self._idle.pop() if self._idle else self.lanes.open(), talk, due)

    def _assign(self, lane: Lane, talk: Talk, due: int) -> None:
        lane.talk, lane.due, lane.sent = talk, due, 0
        if lane.stage == Stage.IDLE:
            self._begin(lane, talk, due)
        elif lane.stage == Stage.CLOSED:
            lane.tape = type(lane.tape)(keep=talk.keep)
            reason = lane.connect(*self._where[0])
            self._watch(lane)
            if reason:
                self._refused(lane, reason)

    def _begin(self, lane: Lane, talk: Talk, due: int) -> None:
        body = talk.body()
        self._sent += 1
        reason = lane.begin(talk, self._head % len(body) + body, due)
        if reason:
            self._lost(lane, reason)

    def _look_around(self, now: int, share: float) -> None:
        """Twice a second: the clocks, timeouts, and a word to whoever watches."""
        before, self._offset = self._offset, dial.clock_offset()
        self.gauge.note_clocks(self._offset - before)
        for lane in self.lanes.all:
            if lane.talk is not None:
                self._check(lane, now)
        ttft = sum(self._ttft) / len(self._ttft) / 1e6 if self._ttft else 0.0
        self._ttft.clear()
        tokens = len(self.samples.time) + sum(len(lane.tape.times) for lane in self.lanes.all if lane.talk is not None)
        counts = {"sent": self._sent, "ended": len(self.samples), "failed": self._failed, "tokens": tokens}
        flight = self._in_flight()
        self.tell(Progress(worker=self.job.worker, **counts, in_flight=flight, ttft_ms=ttft, cpu_share=share))

    def _check(self, lane: Lane, now: int) -> None:
        seen = lane.mark + len(lane.got) + len(lane.tape.times)
        if seen != lane.seen or not lane.alive:
            lane.seen, lane.alive = seen, now
            return
        silent = (now - lane.alive) / 1e9
        if silent > 1 and lane.quiet:
            self._settle(lane)
            if lane.talk is None:
                return
        if lane.tape.done and silent > 2 and lane.talk is not None:  # [DONE] came, the end of the response did not
            self._end_early(lane, now, *judge(lane.tape, asked=lane.talk.asked, size=lane.size))
        elif reason := overdue(lane, now, self.load):
            self._end_early(lane, now, FAILED, reason)

    def _end_early(self, lane: Lane, now: int, outcome: int, reason: str) -> None:
        lane.settle()
        self.lanes.drop(lane)
        lane.sent = lane.sent or lane.due
        self._finish(lane, now, outcome=outcome, reason=reason)

    def _stop(self) -> None:
        """Interrupted: what is under way is kept as cancelled."""
        self._stopping = True
        now = time.monotonic_ns()
        for lane in self.lanes.all:
            if lane.talk is not None:
                self._end_early(lane, now, CANCELLED, "interrupted")

    def _watch(self, lane: Lane) -> None:
        if not self.lanes.watch(lane):
            self.gauge.clock = "user"

    def _in_flight(self) -> int:
        return len(self.lanes.all) - len(self._idle)

    def _patience(self) -> float:
        """Seconds the poll may wait."""
        due = time.monotonic_ns() if self.pace.waiting and self._idle else self.pace.next_due
        return min(TICK / 1e9, max(0.0, (due - time.monotonic_ns()) / 1e9)) if due else TICK / 1e9

    def _await_connections(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if not any(lane.stage in (Stage.CONNECTING, Stage.HANDSHAKE) for lane in self.lanes.all):
                return
            for fd, mask in self.poller.poll(0.05, BATCH):
                self._event(self.lanes.by_fd[fd], mask)
