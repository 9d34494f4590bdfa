"""The request on each connection, from its assignment to the sample that it becomes."""

import errno
import os
import select
import time
from collections import deque

from moebox.bench.generator.connection import Connection, ConnectionPool, ConnectionStage, is_stream_head
from moebox.bench.generator.hot_path import READ_BYTES, HotPath
from moebox.bench.generator.job import Conversation, LoadJob, WorkerGauge
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.generator.running import MAX_EVENTS_PER_TOKEN, Judgement, RunningRequest
from moebox.bench.generator.schedule import LoadSchedule
from moebox.bench.generator.template import EVENT_END
from moebox.bench.samples import CANCELLED, COMPLETED, FAILED, Samples
from moebox.errors import ExternalError, exhausted_limit
from moebox.stream import sockets
from moebox.stream.body import retry_after_s

MAX_DEFERRED_READS = 32  # of one reply
STREAM_END = b"\r\n0\r\n\r\n"  # the end of a chunk, and the last, empty one
BACK_OFF_S = 0.5  # before a connection is used again after a refusal (HTTP 429 or 503, or no connection)
MAX_BACK_OFF_S = 60.0  # bounds Retry-After: a benchmark cannot wait for an hour
SILENCE_CHECK_NS = 4_000_000_000  # of silence, after which a socket is read without an event: bounds a missed one
DONE_GRACE_NS = 2_000_000_000  # after [DONE] for the end of the response, whatever else arrives


class RequestTracker:
    """The requests on a worker's connections. Whatever a server does, each request ends as one sample."""

    def __init__(
        self, job: LoadJob, schedule: LoadSchedule, connections: ConnectionPool, hot: HotPath, gauge: WorkerGauge
    ) -> None:
        self.samples = Samples()
        self.idle: list[Connection] = []
        # Bytes to parse when there is time: of a running request, or of one that ended, with the socket it came from.
        self.backlog: deque[Connection | tuple[RunningRequest, Connection, int]] = deque()
        self.failed = 0
        self.recent_ttfts: list[int] = []  # ns, of requests that ended since the last report
        self._job, self._load, self._schedule = job, job.load, schedule
        self._connections, self._hot, self._gauge = connections, hot, gauge
        self._address = sockets.resolve_addresses(job.address)[0]
        self._stopping = False
        head = sockets.request_head(job.address, job.path, length=-1, headers=job.headers, accept="text/event-stream")
        self._head = head.replace(b"%", b"%%").replace(b"Content-Length: -1", b"Content-Length: %d")

    # A connection gets a request.

    def open_connection(self, connection: Connection) -> str:
        """Begin to connect; return the reason if that fails at once. Raise ExternalError if descriptors run out."""
        reason = connection.connect(*self._address)
        if os.strerror(errno.EMFILE).lower() in reason.lower():
            limit = exhausted_limit(OSError(errno.EMFILE, reason))
            raise ExternalError(f"this machine's limits are too low for so many connections: {limit}")
        if not self._connections.register_descriptor(connection):
            self._gauge.clock = "user"
        return reason

    def assign_request(self, connection: Connection, conversation: Conversation, due: int) -> None:
        """Send the conversation's request on a connection as soon as it is up."""
        now = time.monotonic_ns()
        request = RunningRequest(conversation, due, now, now, ReplyRecorder(conversation.keep_text))
        connection.request = request
        if connection.stage == ConnectionStage.IDLE:
            self._send_request(connection, request)
        elif connection.stage == ConnectionStage.CLOSED and (reason := self.open_connection(connection)):
            self._connection_failed(connection, reason)

    def _send_request(self, connection: Connection, request: RunningRequest) -> None:
        body = request.conversation.next_body()
        if reason := connection.send_request(request, self._head % len(body) + body):
            self._connection_lost(connection, request, reason)

    # Something happened on a connection.

    def handle_data(self, connection: Connection, data: bytes, at: int) -> None:
        """Take bytes from the middle of a plain stream, or its end."""
        request = connection.request
        if request is None:  # bytes that no request asked for
            self._connections.drop_connection(connection)
            return
        segments, since = request.segments, self._hot.unread_since(connection.fd, at)
        if segments and data[-4:] == EVENT_END and len(segments) < MAX_DEFERRED_READS:  # behind a deferred head
            segments.append((data, at, since))
        elif not segments and request.recorder.take_fast(data, at, since):
            self._connections.mark_hot(connection)
        elif not data:
            self._server_closed(connection, request)
        else:
            segments.append((data, at, since))
            if connection.awaits_head and is_stream_head(data):
                connection.awaits_head = False  # many streams begin at once: parse their heads a little later
                self.backlog.append(connection)
            elif data[-7:] == STREAM_END and b"[DONE]" in data and not connection.awaits_head:
                self._finish_later(connection, request)
            else:  # also if the head came with it, since that may announce a close
                self._parse_and_finish(connection, request)
        if len(data) == READ_BYTES and connection.stage in (ConnectionStage.IDLE, ConnectionStage.BUSY):
            self.handle_event(connection, select.EPOLLIN)  # there may be more

    def read_stream(self, connection: Connection) -> int:
        """Read a stream without a template; return when the bytes arrived, or 0 if there were none."""
        request = connection.request
        assert request is not None
        try:
            data, side, _, _ = connection.recv(READ_BYTES, sockets.SIDE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            self._connection_lost(connection, request)
            return 0
        at = sockets.receive_time(side, self._hot.offset, request.sent)
        self.handle_data(connection, data, at)
        return at

    def handle_event(self, connection: Connection, mask: int) -> None:
        """Handle any event but plain bytes in the middle of a stream."""
        if connection is self._connections.placeholder:
            return
        if connection.stage == ConnectionStage.CONNECTING:
            self._connection_ready(connection, connection.finish_connect(self._job.address.host))
            return
        request = connection.request
        if mask & select.EPOLLOUT and (reason := connection.send_pending(b"")):
            if request is None:
                self._connections.drop_connection(connection)
            else:
                self._connection_lost(connection, request, reason)
            return
        if not mask & ~select.EPOLLOUT:
            return
        alive = connection.read_available(self._hot.offset)
        if alive and mask & (select.EPOLLRDHUP | select.EPOLLHUP):  # read up to the end that was announced
            alive = connection.read_available(self._hot.offset)
            if alive:
                connection.rearm_poll()
        if connection.stage == ConnectionStage.BUSY and request is not None:
            (self._parse_and_finish if alive else self._server_closed)(connection, request)
        elif connection.stage != ConnectionStage.HANDSHAKE:
            if not alive:
                self._connections.drop_connection(connection)
        elif alive:
            self._connection_ready(connection, connection.continue_handshake())
        else:
            self._connection_failed(connection, "the server hung up in the TLS handshake")

    def _connection_ready(self, connection: Connection, reason: str) -> None:
        """Send the waiting request on a new connection, or fail it with `reason`."""
        if reason:
            self._connection_failed(connection, reason)
        elif connection.stage == ConnectionStage.IDLE and connection.request is not None:
            self._send_request(connection, connection.request)

    # A request ends.

    def _parse_and_finish(self, connection: Connection, request: RunningRequest) -> None:
        connection.parse_and_update(request)
        if request.recorder.body.is_complete:
            self._finish_request(connection, request)
        else:
            self._connections.mark_hot(connection)

    def _server_closed(self, connection: Connection, request: RunningRequest) -> None:
        """The server closed its side while a request was on the connection, perhaps together with the reply.

        The kernel reports this once. A connection kept after that would take the next request, and a server that reads
        what is still sent to it before it closes (llama.cpp's) answers neither with a reply nor with a reset.
        """
        self._parse_and_finish(connection, request)
        if connection.stage == ConnectionStage.BUSY:
            self._connection_lost(connection, request)
        else:  # the reply was whole
            self._connections.drop_connection(connection)

    def _connection_lost(self, connection: Connection, request: RunningRequest, reason: str = "") -> None:
        """The connection ended during a request: send it again if it was a kept one, else end the request."""
        recorder = request.recorder
        connection.parse_and_update(request)
        if not (connection.is_unused or recorder.body.status or request.parsed_count):
            # A kept connection may be closed just as it is used again: that is not a failure.
            self._connections.drop_connection(connection)
            self._gauge.retried += 1
            self.assign_request(connection, request.conversation, request.due)
            return
        recorder.close(time.monotonic_ns())
        recorder.error = recorder.error or reason
        self._finish_request(connection, request)

    def _connection_failed(self, connection: Connection, reason: str) -> None:
        """The connection could not be made, so its request failed."""
        self._connections.drop_connection(connection)
        if connection.request is not None:
            connection.request.recorder.error = reason
            self._finish_request(connection, connection.request)

    def _finish_request(self, connection: Connection, request: RunningRequest, judged: Judgement | None = None) -> None:
        """Store a request that is over, free its connection, and schedule what follows."""
        request.sent, request.ended_at = request.sent or request.due, time.monotonic_ns()
        outcome = self._store_sample(request, judged)
        body = request.recorder.body
        if not (body.keep_alive and connection.stage == ConnectionStage.BUSY):
            self._connections.drop_connection(connection)
        self._free_connection(connection)
        if self._stopping:
            return
        delay_s = 0.0
        if body.status in (0, 429, 503):  # refused: wait as long as Retry-After requests, within reason
            requested_s = retry_after_s(body.headers.get(b"retry-after", b"").decode("latin-1"))
            delay_s = BACK_OFF_S if requested_s is None else min(requested_s, MAX_BACK_OFF_S, self._load.timeout_s)
        at = request.ended_at + int(1e9 * delay_s)
        self._schedule.finish_request(request.conversation, request.visible_text, succeeded=outcome == COMPLETED, at=at)

    def _finish_later(self, connection: Connection, request: RunningRequest) -> None:
        """Use the connection again at once, since the end of the response was read, and parse the reply later."""
        if request.conversation.keep_text or connection.closes_after_reply:
            self._parse_and_finish(connection, request)
            return
        request.ended_at = time.monotonic_ns()
        self.backlog.append((request, connection, connection.socket_serial))
        self._free_connection(connection)
        self._schedule.finish_request(request.conversation, "", succeeded=True, at=request.ended_at)

    def _free_connection(self, connection: Connection) -> None:
        if connection.stage == ConnectionStage.BUSY:
            connection.stage = ConnectionStage.IDLE
            self._hot.streams[connection.fd] = None
        connection.request = None
        connection.is_unused = connection.can_defer = connection.awaits_head = False
        self.idle.append(connection)

    def _store_sample(self, request: RunningRequest, judged: Judgement | None = None) -> int:
        outcome = request.add_to_samples(self.samples, judged)
        self.failed += outcome != COMPLETED
        self._gauge.estimated += request.recorder.estimated_count
        if request.recorder.times:
            self.recent_ttfts.append(request.recorder.times[0] - request.sent)
        return outcome

    def process_item(self, item: Connection | tuple[RunningRequest, Connection, int]) -> None:
        """Parse bytes from the backlog."""
        if isinstance(item, Connection):
            if item.request is not None:
                item.request.parse_segments()
                self._connections.mark_hot(item)
            return
        request, connection, socket_serial = item
        request.parse_segments()
        if request.recorder.body.is_complete:
            self._store_sample(request)
            return
        # The bytes looked like the end of the response but were not: the connection's next bytes are not a reply.
        self._store_sample(request, (FAILED, "the end of the stream came inside a chunk"))
        if connection.socket_serial == socket_serial:
            self.abort_request(connection, (FAILED, "the reply before it went on"))

    # Time passes.

    def check_timeouts(self, connection: Connection, now: int) -> None:
        """Abort a request that takes too long, is silent, or never ends."""
        request = connection.request
        if request is None:
            return
        recorder, conversation, load, reason = request.recorder, request.conversation, self._load, ""
        mark = request.parsed_count + len(request.segments) + len(recorder.times)
        if mark != request.progress_mark:
            request.progress_mark, request.active_at = mark, now
            if connection.sock is not None:
                sockets.acknowledge_rarely(connection.sock)
        if now - request.active_at > 1_000_000_000 and connection.can_defer:
            self._parse_and_finish(connection, request)
            if connection.request is not request:
                return
        silent_ns = now - max(request.active_at, connection.checked_at)
        if connection.stage == ConnectionStage.BUSY and silent_ns > SILENCE_CHECK_NS:
            connection.checked_at = now
            self.handle_event(connection, select.EPOLLIN)
            if connection.request is not request or connection.stage != ConnectionStage.BUSY:
                return
        events = len(recorder.times) + len(recorder.silent_times)
        if (now - (request.sent or request.assigned_at)) / 1e9 > load.timeout_s:
            reason = f"not over after {load.timeout_s:g} s"
        elif (now - request.active_at) / 1e9 > load.stall_s:
            reason = f"silent for {load.stall_s:g} s"
        if recorder.done and (reason or now - min(request.active_at, recorder.done_at) > DONE_GRACE_NS):
            # [DONE] arrived, the response's end did not.
            recorder.close(now)
            self.abort_request(connection, request.judge_reply())
            return
        if not reason and events > MAX_EVENTS_PER_TOKEN * conversation.max_tokens + 4096:
            reason = f"still streams after {events:,} events; {conversation.max_tokens:,} tokens were asked for"
        if reason:
            self.abort_request(connection, (FAILED, reason))

    def abort_request(self, connection: Connection, judged: Judgement) -> None:
        """End the request on a connection, and close it."""
        request = connection.request
        if request is not None:
            connection.parse_and_update(request)
        self._connections.drop_connection(connection)
        if request is not None:
            self._finish_request(connection, request, judged)

    def cancel_all(self) -> None:
        """Store every running request as cancelled."""
        self._stopping = True
        for connection in self._connections.all:
            if connection.request is not None:
                self.abort_request(connection, (CANCELLED, "interrupted"))
