"""The request on each connection, from the moment it is given one to the sample it becomes."""

import select
import time
from collections import deque

from moebox.bench.generator.connection import Connection, ConnectionStage, is_stream_head
from moebox.bench.generator.connections import ConnectionPool
from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.finished import FinishedRequest, judge_reply, runaway_reason
from moebox.bench.generator.hot_path import READ_BYTES, HotPath
from moebox.bench.generator.job import LoadJob, WorkerGauge
from moebox.bench.generator.schedule import LoadSchedule
from moebox.bench.samples import CANCELLED, COMPLETED, FAILED, Samples
from moebox.core.measure import Load
from moebox.stream import sockets
from moebox.stream.body import retry_after_s

MAX_DEFERRED_READS = 32  # reads of one reply that may wait
EVENT_END = b"\n\n\r\n"  # the end of an event that ends with its chunk
STREAM_END = b"\r\n0\r\n\r\n"  # the end of a chunk and the last, empty one
BACK_OFF_S = 0.5  # before a connection asks again after a refusal (HTTP 429 or 503, or no connection)
MAX_BACK_OFF_S = 60.0  # whatever a server's Retry-After says: a benchmark is no place to wait for an hour
SILENCE_CHECK_NS = (
    4_000_000_000  # ns of silence after which a socket is read unasked: no event that was missed costs more
)
DONE_GRACE_NS = 2_000_000_000  # ns after [DONE], when the end of the response does not come, whatever else does


class RequestTracker:
    """What is under way on a worker's connections. Whatever a server does, each request ends as one sample."""

    def __init__(
        self, job: LoadJob, schedule: LoadSchedule, connections: ConnectionPool, hot: HotPath, gauge: WorkerGauge
    ) -> None:
        self.samples = Samples()
        self.idle: list[Connection] = []
        self.backlog: deque[Connection | FinishedRequest] = deque()  # read, to be looked at when there is time
        self.sent = self.failed = 0
        self.recent_ttfts: list[int] = []  # of requests that ended since someone last asked
        self._job, self._load, self._schedule = job, job.load, schedule
        self._connections, self._hot, self._gauge = connections, hot, gauge
        self._address = sockets.resolve_addresses(job.address)[0]
        self._stopping = False
        head = sockets.request_head(job.address, job.path, length=-1, headers=job.headers, accept="text/event-stream")
        self._head = head.replace(b"%", b"%%").replace(b"Content-Length: -1", b"Content-Length: %d")

    # A connection gets a request.

    def open_connection(self, connection: Connection) -> str:
        """Begin to connect; the reason when that failed at once."""
        reason = connection.connect(*self._address)
        if not self._connections.register_descriptor(connection):
            self._gauge.clock = "user"
        return reason

    def assign_request(self, connection: Connection, conversation: Conversation, due: int) -> None:
        """Send this on that connection, as soon as it is up."""
        connection.conversation, connection.due, connection.sent = conversation, due, 0
        connection.assigned_at = connection.active_at = time.monotonic_ns()
        connection.parsed_count = connection.progress_mark = 0
        if connection.stage == ConnectionStage.IDLE:
            self._send_request(connection, conversation, due)
        elif connection.stage == ConnectionStage.CLOSED:
            connection.recorder = type(connection.recorder)(keep_text=conversation.keep_text)
            reason = self.open_connection(connection)
            if reason:
                self._connection_failed(connection, reason)

    def _send_request(self, connection: Connection, conversation: Conversation, due: int) -> None:
        body = conversation.next_body()
        self.sent += 1
        reason = connection.send_request(conversation, self._head % len(body) + body, due)
        if reason:
            self._connection_lost(connection, reason)

    # Something happened on a connection.

    def handle_data(self, connection: Connection, data: bytes, at: int) -> None:
        """Bytes in the middle of a plain stream, or its end."""
        got, since = connection.segments, self._hot.unread_since(connection.fd, at)
        if (
            got and data[-4:] == EVENT_END and len(got) < MAX_DEFERRED_READS
        ):  # its beginning still waits to be looked at
            got.append((data, at, since))
        elif got or not connection.recorder.take_fast(data, at, since):
            got.append((data, at, since))
            self._handle_unusual(connection, data)
        else:
            self._connections.mark_hot(connection)
        if len(data) == READ_BYTES and connection.stage in (
            ConnectionStage.IDLE,
            ConnectionStage.BUSY,
        ):  # there may be more
            self.handle_event(connection, select.EPOLLIN)

    def _handle_unusual(self, connection: Connection, data: bytes) -> None:
        """What was just read is not one more event like the one before."""
        if not data:
            connection.segments.pop()
            self._server_closed(connection)
        elif connection.awaits_head and is_stream_head(data):
            connection.awaits_head = False  # first tokens come to all at once: look at heads a little later
            self.backlog.append(connection)
        elif data[-7:] == STREAM_END and b"[DONE]" in data and not connection.awaits_head:
            self._finish_later(connection)  # a head that came with it may say that the connection closes
        else:
            self._parse_and_finish(connection)

    def read_stream(self, connection: Connection) -> int:
        """Read a stream whose events are not known yet; when that came, 0 where nothing did."""
        try:
            data, side, _, _ = connection.recv(READ_BYTES, sockets.SIDE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            self._connection_lost(connection)
            return 0
        at = sockets.receive_time(side, self._hot.offset, connection.sent)
        self.handle_data(connection, data, at)
        return at

    def handle_event(self, connection: Connection, mask: int) -> None:
        """Anything but plain bytes in the middle of a stream."""
        if connection is self._connections.placeholder:
            return
        if connection.stage == ConnectionStage.CONNECTING:
            self._connection_ready(connection, connection.finish_connect(self._job.address.host))
        elif mask & select.EPOLLOUT and (reason := connection.send_pending(b"")):
            self._connection_lost(connection, reason)
        elif mask & ~select.EPOLLOUT:
            self._was_read(connection, alive=self._read_on(connection, mask))

    def _read_on(self, connection: Connection, mask: int) -> bool:
        """Read what has come; whether the server still holds its end."""
        alive = connection.read_available(self._hot.offset)
        if alive and mask & (select.EPOLLRDHUP | select.EPOLLHUP):  # what is left comes to an end
            alive = connection.read_available(self._hot.offset)
            if alive:
                connection.rearm_poll()
        return alive

    def _was_read(self, connection: Connection, *, alive: bool) -> None:
        if connection.stage == ConnectionStage.BUSY:
            (self._parse_and_finish if alive else self._server_closed)(connection)
        elif connection.stage != ConnectionStage.HANDSHAKE:
            if not alive or connection.segments:  # given up by the server, or it speaks without being asked
                self._connections.drop_connection(connection)
        elif alive:
            self._connection_ready(connection, connection.continue_handshake())
        else:
            self._connection_failed(connection, "the server hung up in the TLS handshake")

    def _connection_ready(self, connection: Connection, reason: str) -> None:
        """A connection is up, or could not be made."""
        if reason:
            self._connection_failed(connection, reason)
        elif connection.stage == ConnectionStage.IDLE and connection.conversation is not None:
            self._send_request(connection, connection.conversation, connection.due)

    # A request ends.

    def _parse_and_finish(self, connection: Connection) -> None:
        connection.parse_and_update()
        if connection.recorder.is_complete:
            self._finish_request(connection, time.monotonic_ns())
        else:
            self._connections.mark_hot(connection)

    def _server_closed(self, connection: Connection) -> None:
        """The server's end of the connection was read while a request was on it, perhaps together with its reply.

        The kernel tells of an end once. A connection kept after that would take the next request, and a server that
        reads what is still sent to it before it closes (llama.cpp's) answers neither with a reply nor with a reset.
        """
        self._parse_and_finish(connection)
        if connection.stage == ConnectionStage.BUSY:
            self._connection_lost(connection)
        else:  # the reply was whole
            self._connections.drop_connection(connection)

    def _connection_lost(self, connection: Connection, reason: str = "") -> None:
        """The connection ended under a request."""
        conversation, now = connection.conversation, time.monotonic_ns()
        connection.parse_and_update()
        answered = connection.recorder.body.status or connection.parsed_count
        if not connection.is_unused and conversation is not None and not answered:
            # A kept connection may be closed just as it is used again: that is nobody's failure.
            due = connection.due
            self._connections.drop_connection(connection)
            self._gauge.retried += 1
            self.assign_request(connection, conversation, due)
            return
        connection.recorder.close(now)
        if reason and not connection.recorder.error:
            connection.recorder.error = reason
        self._finish_request(connection, now)

    def _connection_failed(self, connection: Connection, reason: str) -> None:
        """No connection: the request it was for has failed."""
        self._connections.drop_connection(connection)
        if connection.conversation is None:
            return
        connection.sent = connection.sent or connection.due
        connection.recorder.error = reason
        self._finish_request(connection, time.monotonic_ns())

    def _finish_request(
        self, connection: Connection, now: int, *, outcome: int | None = None, reason: str = ""
    ) -> None:
        """A request is over, one way or another: keep it, and let its connection go on."""
        finished = self._make_finished(connection, now)
        outcome = self._store_sample(finished, outcome=outcome, reason=reason)
        if not (finished.recorder.body.keep_alive and connection.stage == ConnectionStage.BUSY):
            self._connections.drop_connection(connection)
        self._free_connection(connection)
        if not self._stopping:
            at = now + int(1e9 * retry_delay_s(finished, self._load))
            self._schedule.finish_request(
                finished.conversation, finished.visible_text, succeeded=outcome == COMPLETED, at=at
            )

    def _finish_later(self, connection: Connection) -> None:
        """The end of the response was read: the connection may go on at once, the reply be looked at later."""
        if connection.conversation is None or connection.conversation.keep_text or connection.closes_after_reply:
            self._parse_and_finish(connection)
            return
        now = time.monotonic_ns()
        finished = self._make_finished(connection, now)
        self.backlog.append(finished)
        connection.segments = []
        self._free_connection(connection)
        self._schedule.finish_request(finished.conversation, "", succeeded=True, at=now)

    def _make_finished(self, connection: Connection, now: int) -> FinishedRequest:
        conversation = connection.conversation
        assert conversation is not None
        return FinishedRequest(
            connection.recorder,
            connection.segments,
            conversation,
            conversation.turn,
            connection.due,
            connection.sent,
            now,
            connection.request_bytes,
            connection,
            connection.socket_serial,
        )

    def _free_connection(self, connection: Connection) -> None:
        if connection.stage == ConnectionStage.BUSY:
            connection.stage = ConnectionStage.IDLE
            self._connections.mark_cold(connection)
        connection.conversation = None
        connection.is_unused = connection.can_defer = connection.awaits_head = False
        self.idle.append(connection)

    def _store_sample(self, finished: FinishedRequest, *, outcome: int | None = None, reason: str = "") -> int:
        outcome = finished.add_to_samples(self.samples, outcome=outcome, reason=reason)
        self.failed += outcome != COMPLETED
        self._gauge.estimated += finished.recorder.estimated_count
        if finished.recorder.times:
            self.recent_ttfts.append(finished.recorder.times[0] - finished.sent)
        return outcome

    def process_item(self, item: Connection | FinishedRequest) -> None:
        """Look at what was read and had to wait."""
        if isinstance(item, Connection):
            item.parse_segments()
            self._connections.mark_hot(item)
            return
        item.parse_unread()
        if item.recorder.is_complete:
            self._store_sample(item)
            return
        # What looked like the end of the response was not: whatever else came on that connection belongs to nobody.
        self._store_sample(item, outcome=FAILED, reason="the end of the stream came inside a chunk")
        if item.connection.socket_serial == item.socket_serial:
            self.abort_request(item.connection, FAILED, "the reply before it went on")

    # Time passes.

    def check_timeouts(self, connection: Connection, now: int) -> None:
        """Give up a request that took too long, is silent, or never ends."""
        conversation = connection.conversation
        if conversation is None:
            return
        seen = connection.parsed_count + len(connection.segments) + len(connection.recorder.times)
        if seen != connection.progress_mark:
            connection.progress_mark, connection.active_at = seen, now
            if connection.sock is not None:
                sockets.acknowledge_rarely(connection.sock)
        if self._under_way(connection, now):
            self._give_up(connection, conversation, now)

    def _under_way(self, connection: Connection, now: int) -> bool:
        """Whether the request still is, after a look at a silent connection's bytes and at its socket."""
        conversation = connection.conversation
        if now - connection.active_at > 1_000_000_000 and connection.can_defer:
            self._parse_and_finish(connection)
            if connection.conversation is not conversation:
                return False
        if (
            connection.stage != ConnectionStage.BUSY
            or now - max(connection.active_at, connection.checked_at) <= SILENCE_CHECK_NS
        ):
            return True
        connection.checked_at = now
        self.handle_event(connection, select.EPOLLIN)
        return connection.conversation is conversation and connection.stage == ConnectionStage.BUSY

    def _give_up(self, connection: Connection, conversation: Conversation, now: int) -> None:
        recorder, late = connection.recorder, timeout_reason(connection, now, self._load)
        since = min(connection.active_at, recorder.done_at) if recorder.done else now
        if recorder.done and (late or now - since > DONE_GRACE_NS):  # [DONE] came, the response's end did not
            self.abort_request(
                connection,
                *judge_reply(recorder, max_tokens=conversation.max_tokens, request_bytes=connection.request_bytes),
            )
        elif reason := late or runaway_reason(recorder, max_tokens=conversation.max_tokens):
            self.abort_request(connection, FAILED, reason)

    def abort_request(self, connection: Connection, outcome: int, reason: str) -> None:
        """End what is under way on a connection, and hang up."""
        connection.parse_and_update()
        self._connections.drop_connection(connection)
        if connection.conversation is not None:
            connection.sent = connection.sent or connection.due
            self._finish_request(connection, time.monotonic_ns(), outcome=outcome, reason=reason)

    def cancel_all(self) -> None:
        """Interrupted: what is under way is kept as cancelled."""
        self._stopping = True
        for connection in self._connections.all:
            if connection.conversation is not None:
                self.abort_request(connection, CANCELLED, "interrupted")


def timeout_reason(connection: Connection, now: int, load: Load) -> str:
    """Why the request on this connection has to be given up; "" when it has not."""
    if (now - (connection.sent or connection.assigned_at)) / 1e9 > load.timeout_s:
        return f"not over after {load.timeout_s:g} s"
    if (now - connection.active_at) / 1e9 > load.stall_s:
        return f"silent for {load.stall_s:g} s"
    return ""


def retry_delay_s(finished: FinishedRequest, load: Load) -> float:
    """Seconds before the connection asks again: what a refusal's Retry-After says, within reason."""
    body = finished.recorder.body
    if body.status not in (0, 429, 503):
        return 0.0
    requested_s = retry_after_s(body.headers)
    return BACK_OFF_S if requested_s is None else min(requested_s, MAX_BACK_OFF_S, load.timeout_s)
