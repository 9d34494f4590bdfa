"""The request on each connection, from the moment it is given one to the sample it becomes."""

import select
import time
from collections import deque

from moebox.bench.generator.connection import Connection, Stage, opens_stream
from moebox.bench.generator.connections import Connections
from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.finished import Finished, endless, judge
from moebox.bench.generator.hot_path import BUFFER, HotPath
from moebox.bench.generator.job import Gauge, Job
from moebox.bench.generator.schedule import Schedule
from moebox.bench.samples import CANCELLED, COMPLETED, FAILED, Samples
from moebox.core.measure import Load
from moebox.stream import sockets
from moebox.stream.body import retry_after_s

UNREAD = 32  # reads of one reply that may wait
EVENT_END = b"\n\n\r\n"  # the end of an event that ends with its chunk
STREAM_END = b"\r\n0\r\n\r\n"  # the end of a chunk and the last, empty one
BACK_OFF_S = 0.5  # before a connection asks again after a refusal (HTTP 429 or 503, or no connection)
LONGEST_BACK_OFF_S = 60.0  # whatever a server's Retry-After says: a benchmark is no place to wait for an hour
LOOK_AGAIN = 4_000_000_000  # ns of silence after which a socket is read unasked: no event that was missed costs more
WITHOUT_END = 2_000_000_000  # ns after [DONE], when the end of the response does not come, whatever else does


class Requests:
    """What is under way on a worker's connections. Whatever a server does, each request ends as one sample."""

    def __init__(self, job: Job, schedule: Schedule, connections: Connections, hot: HotPath, gauge: Gauge) -> None:
        self.samples = Samples()
        self.idle: list[Connection] = []
        self.backlog: deque[Connection | Finished] = deque()  # read, to be looked at when there is time
        self.sent = self.failed = 0
        self.ttft: list[int] = []  # of requests that ended since someone last asked
        self._job, self._load, self._schedule = job, job.load, schedule
        self._connections, self._hot, self._gauge = connections, hot, gauge
        self._address = sockets.resolve_addresses(job.target)[0]
        self._stopping = False
        head = sockets.request_head(job.target, job.path, length=-1, headers=job.headers, accept="text/event-stream")
        self._head = head.replace(b"%", b"%%").replace(b"Content-Length: -1", b"Content-Length: %d")

    # A connection gets a request.

    def dial(self, connection: Connection) -> str:
        """Begin to connect; the reason when that failed at once."""
        reason = connection.connect(*self._address)
        if not self._connections.watch(connection):
            self._gauge.clock = "user"
        return reason

    def assign(self, connection: Connection, conversation: Conversation, due: int) -> None:
        """Send this on that connection, as soon as it is up."""
        connection.conversation, connection.due, connection.sent = conversation, due, 0
        connection.given = connection.alive = time.monotonic_ns()
        connection.mark = connection.seen = 0
        if connection.stage == Stage.IDLE:
            self._begin(connection, conversation, due)
        elif connection.stage == Stage.CLOSED:
            connection.recorder = type(connection.recorder)(keep=conversation.keep)
            reason = self.dial(connection)
            if reason:
                self._refused(connection, reason)

    def _begin(self, connection: Connection, conversation: Conversation, due: int) -> None:
        body = conversation.body()
        self.sent += 1
        reason = connection.begin(conversation, self._head % len(body) + body, due)
        if reason:
            self._lost(connection, reason)

    # Something happened on a connection.

    def came(self, connection: Connection, data: bytes, at: int) -> None:
        """Bytes in the middle of a plain stream, or its end."""
        got, since = connection.got, self._hot.unseen_since(connection.fd, at)
        if got and data[-4:] == EVENT_END and len(got) < UNREAD:  # its beginning still waits to be looked at
            got.append((data, at, since))
        elif got or not connection.recorder.quick(data, at, since):
            got.append((data, at, since))
            self._unusual(connection, data)
        else:
            self._connections.heat(connection)
        if len(data) == BUFFER and connection.stage in (Stage.IDLE, Stage.BUSY):  # there may be more
            self.event(connection, select.EPOLLIN)

    def _unusual(self, connection: Connection, data: bytes) -> None:
        """What was just read is not one more event like the one before."""
        if not data:
            connection.got.pop()
            self._ended(connection)
        elif connection.awaiting and opens_stream(data):
            connection.awaiting = False  # first tokens come to all at once: look at heads a little later
            self.backlog.append(connection)
        elif data[-7:] == STREAM_END and b"[DONE]" in data and not connection.awaiting:
            self._hand_over(connection)  # a head that came with it may say that the connection closes
        else:
            self._settle(connection)

    def read(self, connection: Connection) -> int:
        """Read a stream whose events are not known yet; when that came, 0 where nothing did."""
        try:
            data, side, _, _ = connection.recv(BUFFER, sockets.SIDE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            self._lost(connection)
            return 0
        at = sockets.receive_time(side, self._hot.offset, connection.sent)
        self.came(connection, data, at)
        return at

    def event(self, connection: Connection, mask: int) -> None:
        """Anything but plain bytes in the middle of a stream."""
        if connection is self._connections.nobody:
            return
        if connection.stage == Stage.CONNECTING:
            self._up(connection, connection.connected(self._job.target.host))
        elif mask & select.EPOLLOUT and (reason := connection.send(b"")):
            self._lost(connection, reason)
        elif mask & ~select.EPOLLOUT:
            self._was_read(connection, alive=self._read_on(connection, mask))

    def _read_on(self, connection: Connection, mask: int) -> bool:
        """Read what has come; whether the server still holds its end."""
        alive = connection.read(self._hot.offset)
        if alive and mask & (select.EPOLLRDHUP | select.EPOLLHUP):  # what is left comes to an end
            alive = connection.read(self._hot.offset)
            if alive:
                connection.tell_again()
        return alive

    def _was_read(self, connection: Connection, *, alive: bool) -> None:
        if connection.stage == Stage.BUSY:
            (self._settle if alive else self._ended)(connection)
        elif connection.stage != Stage.HANDSHAKE:
            if not alive or connection.got:  # given up by the server, or it speaks without being asked
                self._connections.drop(connection)
        elif alive:
            self._up(connection, connection.shake_hands())
        else:
            self._refused(connection, "the server hung up in the TLS handshake")

    def _up(self, connection: Connection, reason: str) -> None:
        """A connection is up, or could not be made."""
        if reason:
            self._refused(connection, reason)
        elif connection.stage == Stage.IDLE and connection.conversation is not None:
            self._begin(connection, connection.conversation, connection.due)

    # A request ends.

    def _settle(self, connection: Connection) -> None:
        connection.settle()
        if connection.recorder.complete:
            self._finish(connection, time.monotonic_ns())
        else:
            self._connections.heat(connection)

    def _ended(self, connection: Connection) -> None:
        """The server's end of the connection was read while a request was on it, perhaps together with its reply.

        The kernel tells of an end once. A connection kept after that would take the next request, and a server that
        reads what is still sent to it before it closes (llama.cpp's) answers neither with a reply nor with a reset.
        """
        self._settle(connection)
        if connection.stage == Stage.BUSY:
            self._lost(connection)
        else:  # the reply was whole
            self._connections.drop(connection)

    def _lost(self, connection: Connection, reason: str = "") -> None:
        """The connection ended under a request."""
        conversation, now = connection.conversation, time.monotonic_ns()
        connection.settle()
        answered = connection.recorder.body.status or connection.mark
        if not connection.fresh and conversation is not None and not answered:
            # A kept connection may be closed just as it is used again: that is nobody's failure.
            due = connection.due
            self._connections.drop(connection)
            self._gauge.retried += 1
            self.assign(connection, conversation, due)
            return
        connection.recorder.end(now)
        if reason and not connection.recorder.error:
            connection.recorder.error = reason
        self._finish(connection, now)

    def _refused(self, connection: Connection, reason: str) -> None:
        """No connection: the request it was for has failed."""
        self._connections.drop(connection)
        if connection.conversation is None:
            return
        connection.sent = connection.sent or connection.due
        connection.recorder.error = reason
        self._finish(connection, time.monotonic_ns())

    def _finish(self, connection: Connection, now: int, *, outcome: int | None = None, reason: str = "") -> None:
        """A request is over, one way or another: keep it, and let its connection go on."""
        finished = self._finished(connection, now)
        outcome = self._keep(finished, outcome=outcome, reason=reason)
        if not (finished.recorder.body.keep_alive and connection.stage == Stage.BUSY):
            self._connections.drop(connection)
        self._free(connection)
        if not self._stopping:
            at = now + int(1e9 * back_off_s(finished, self._load))
            self._schedule.finished(finished.conversation, finished.text, well=outcome == COMPLETED, at=at)

    def _hand_over(self, connection: Connection) -> None:
        """The end of the response was read: the connection may go on at once, the reply be looked at later."""
        if connection.conversation is None or connection.conversation.keep or connection.closes:
            self._settle(connection)
            return
        now = time.monotonic_ns()
        finished = self._finished(connection, now)
        self.backlog.append(finished)
        connection.got = []
        self._free(connection)
        self._schedule.finished(finished.conversation, "", well=True, at=now)

    def _finished(self, connection: Connection, now: int) -> Finished:
        conversation = connection.conversation
        assert conversation is not None
        return Finished(
            connection.recorder,
            connection.got,
            conversation,
            conversation.turn,
            connection.due,
            connection.sent,
            now,
            connection.size,
            connection,
            connection.serial,
        )

    def _free(self, connection: Connection) -> None:
        if connection.stage == Stage.BUSY:
            connection.stage = Stage.IDLE
            self._connections.cool(connection)
        connection.conversation = None
        connection.fresh = connection.quiet = connection.awaiting = False
        self.idle.append(connection)

    def _keep(self, finished: Finished, *, outcome: int | None = None, reason: str = "") -> int:
        outcome = finished.keep(self.samples, outcome=outcome, reason=reason)
        self.failed += outcome != COMPLETED
        self._gauge.estimated += finished.recorder.estimated
        if finished.recorder.times:
            self.ttft.append(finished.recorder.times[0] - finished.sent)
        return outcome

    def look_at(self, item: Connection | Finished) -> None:
        """Look at what was read and had to wait."""
        if isinstance(item, Connection):
            item.look()
            self._connections.heat(item)
            return
        item.read()
        if item.recorder.complete:
            self._keep(item)
            return
        # What looked like the end of the response was not: whatever else came on that connection belongs to nobody.
        self._keep(item, outcome=FAILED, reason="the end of the stream came inside a chunk")
        if item.connection.serial == item.serial:
            self.abandon(item.connection, FAILED, "the reply before it went on")

    # Time passes.

    def check(self, connection: Connection, now: int) -> None:
        """Give up a request that took too long, is silent, or never ends."""
        conversation = connection.conversation
        if conversation is None:
            return
        seen = connection.mark + len(connection.got) + len(connection.recorder.times)
        if seen != connection.seen:
            connection.seen, connection.alive = seen, now
            if connection.sock is not None:
                sockets.acknowledge_rarely(connection.sock)
        if self._under_way(connection, now):
            self._give_up(connection, conversation, now)

    def _under_way(self, connection: Connection, now: int) -> bool:
        """Whether the request still is, after a look at a silent connection's bytes and at its socket."""
        conversation = connection.conversation
        if now - connection.alive > 1_000_000_000 and connection.quiet:
            self._settle(connection)
            if connection.conversation is not conversation:
                return False
        if connection.stage != Stage.BUSY or now - max(connection.alive, connection.looked) <= LOOK_AGAIN:
            return True
        connection.looked = now
        self.event(connection, select.EPOLLIN)
        return connection.conversation is conversation and connection.stage == Stage.BUSY

    def _give_up(self, connection: Connection, conversation: Conversation, now: int) -> None:
        recorder, late = connection.recorder, overdue(connection, now, self._load)
        since = min(connection.alive, recorder.done_at) if recorder.done else now
        if recorder.done and (late or now - since > WITHOUT_END):  # [DONE] came, the response's end did not
            self.abandon(connection, *judge(recorder, asked=conversation.asked, size=connection.size))
        elif reason := late or endless(recorder, asked=conversation.asked):
            self.abandon(connection, FAILED, reason)

    def abandon(self, connection: Connection, outcome: int, reason: str) -> None:
        """End what is under way on a connection, and hang up."""
        connection.settle()
        self._connections.drop(connection)
        if connection.conversation is not None:
            connection.sent = connection.sent or connection.due
            self._finish(connection, time.monotonic_ns(), outcome=outcome, reason=reason)

    def stop(self) -> None:
        """Interrupted: what is under way is kept as cancelled."""
        self._stopping = True
        for connection in self._connections.all:
            if connection.conversation is not None:
                self.abandon(connection, CANCELLED, "interrupted")


def overdue(connection: Connection, now: int, load: Load) -> str:
    """Why the request on this connection has to be given up; "" when it has not."""
    if (now - (connection.sent or connection.given)) / 1e9 > load.timeout_s:
        return f"not over after {load.timeout_s:g} s"
    if (now - connection.alive) / 1e9 > load.stall_s:
        return f"silent for {load.stall_s:g} s"
    return ""


def back_off_s(finished: Finished, load: Load) -> float:
    """Seconds before the connection asks again: what a refusal's Retry-After says, within reason."""
    body = finished.recorder.body
    if body.status not in (0, 429, 503):
        return 0.0
    told = retry_after_s(body.headers)
    return BACK_OFF_S if told is None else min(told, LONGEST_BACK_OFF_S, load.timeout_s)
