"""The request on each connection, from its assignment to the sample that it becomes."""

import errno
import os
import select
import time
from collections import deque

from moebox.bench.generator.connection import Connection, ConnectionPool, ConnectionStage, is_stream_head
from moebox.bench.generator.finished import MAX_EVENTS_PER_TOKEN, FinishedRequest, judge_reply
from moebox.bench.generator.hot_path import READ_BYTES, HotPath
from moebox.bench.generator.job import Conversation, LoadJob, WorkerGauge
from moebox.bench.generator.recorder import ReplyRecorder
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
        self.backlog: deque[Connection | FinishedRequest] = deque()  # bytes to parse when there is time
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
        connection.conversation, connection.due, connection.sent = conversation, due, 0
        connection.assigned_at = connection.active_at = time.monotonic_ns()
        connection.parsed_count = connection.progress_mark = 0
        if connection.stage == ConnectionStage.IDLE:
            self._send_request(connection, conversation, due)
        elif connection.stage == ConnectionStage.CLOSED:
            connection.recorder = ReplyRecorder(keep_text=conversation.keep_text)
            if reason := self.open_connection(connection):
                self._connection_failed(connection, reason)

    def _send_request(self, connection: Connection, conversation: Conversation, due: int) -> None:
        body = conversation.next_body()
        if reason := connection.send_request(conversation, self._head % len(body) + body, due):
            self._connection_lost(connection, reason)

    # Something happened on a connection.

    def handle_data(self, connection: Connection, data: bytes, at: int) -> None:
        """Take bytes from the middle of a plain stream, or its end."""
        segments, since = connection.segments, self._hot.unread_since(connection.fd, at)
        if segments and data[-4:] == EVENT_END and len(segments) < MAX_DEFERRED_READS:  # behind a deferred head
            segments.append((data, at, since))
        elif not segments and connection.recorder.take_fast(data, at, since):
            self._connections.mark_hot(connection)
        elif not data:
            self._server_closed(connection)
        else:
            segments.append((data, at, since))
            if connection.awaits_head and is_stream_head(data):
                connection.awaits_head = False  # many streams begin at once: parse their heads a little later
                self.backlog.append(connection)
            elif data[-7:] == STREAM_END and b"[DONE]" in data and not connection.awaits_head:
                self._finish_later(connection)
            else:  # also if the head came with it, since that may announce a close
                self._parse_and_finish(connection)
        if len(data) == READ_BYTES and connection.stage in (ConnectionStage.IDLE, ConnectionStage.BUSY):
            self.handle_event(connection, select.EPOLLIN)  # there may be more

    def read_stream(self, connection: Connection) -> int:
        """Read a stream without a template; return when the bytes arrived, or 0 if there were none."""
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
        """Handle any event but plain bytes in the middle of a stream."""
        if connection is self._connections.placeholder:
            return
        if connection.stage == ConnectionStage.CONNECTING:
            self._connection_ready(connection, connection.finish_connect(self._job.address.host))
            return
        if mask & select.EPOLLOUT and (reason := connection.send_pending(b"")):
            self._connection_lost(connection, reason)
            return
        if not mask & ~select.EPOLLOUT:
            return
        alive = connection.read_available(self._hot.offset)
        if alive and mask & (select.EPOLLRDHUP | select.EPOLLHUP):  # read up to the end that was announced
            alive = connection.read_available(self._hot.offset)
            if alive:
                connection.rearm_poll()
        if connection.stage == ConnectionStage.BUSY:
            (self._parse_and_finish if alive else self._server_closed)(connection)
        elif connection.stage != ConnectionStage.HANDSHAKE:
            if not alive or connection.segments:  # closed by the server, or bytes that no request asked for
                self._connections.drop_connection(connection)
        elif alive:
            self._connection_ready(connection, connection.continue_handshake())
        else:
            self._connection_failed(connection, "the server hung up in the TLS handshake")

    def _connection_ready(self, connection: Connection, reason: str) -> None:
        """Send the waiting request on a new connection, or fail it with `reason`."""
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
        """The server closed its side while a request was on the connection, perhaps together with the reply.

        The kernel reports this once. A connection kept after that would take the next request, and a server that reads
        what is still sent to it before it closes (llama.cpp's) answers neither with a reply nor with a reset.
        """
        self._parse_and_finish(connection)
        if connection.stage == ConnectionStage.BUSY:
            self._connection_lost(connection)
        else:  # the reply was whole
            self._connections.drop_connection(connection)

    def _connection_lost(self, connection: Connection, reason: str = "") -> None:
        """The connection ended during a request: send it again if it was a kept one, else end the request."""
        conversation, now = connection.conversation, time.monotonic_ns()
        connection.parse_and_update()
        answered = connection.recorder.body.status or connection.parsed_count
        if not connection.is_unused and conversation is not None and not answered:
            # A kept connection may be closed just as it is used again: that is not a failure.
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
        """The connection could not be made, so its request failed."""
        self._connections.drop_connection(connection)
        if connection.conversation is None:
            return
        connection.sent = connection.sent or connection.due
        connection.recorder.error = reason
        self._finish_request(connection, time.monotonic_ns())

    def _finish_request(
        self, connection: Connection, now: int, *, outcome: int | None = None, reason: str = ""
    ) -> None:
        """Store a request that is over, free its connection, and schedule what follows."""
        finished = self._make_finished(connection, now)
        outcome = self._store_sample(finished, outcome=outcome, reason=reason)
        body = finished.recorder.body
        if not (body.keep_alive and connection.stage == ConnectionStage.BUSY):
            self._connections.drop_connection(connection)
        self._free_connection(connection)
        if self._stopping:
            return
        delay_s = 0.0
        if body.status in (0, 429, 503):  # refused: wait as long as Retry-After requests, within reason
            requested_s = retry_after_s(body.headers.get(b"retry-after", b"").decode("latin-1"))
            delay_s = BACK_OFF_S if requested_s is None else min(requested_s, MAX_BACK_OFF_S, self._load.timeout_s)
        self._schedule.finish_request(
            finished.conversation, finished.visible_text, succeeded=outcome == COMPLETED, at=now + int(1e9 * delay_s)
        )

    def _finish_later(self, connection: Connection) -> None:
        """Use the connection again at once, since the end of the response was read, and parse the reply later."""
        conversation = connection.conversation
        if conversation is None or conversation.keep_text or connection.closes_after_reply:
            self._parse_and_finish(connection)
            return
        now = time.monotonic_ns()
        self.backlog.append(self._make_finished(connection, now))
        connection.segments = []
        self._free_connection(connection)
        self._schedule.finish_request(conversation, "", succeeded=True, at=now)

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
            self._hot.streams[connection.fd] = None
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
        """Parse bytes from the backlog."""
        if isinstance(item, Connection):
            item.parse_segments()
            self._connections.mark_hot(item)
            return
        for data, came, since in item.unread_segments:
            item.recorder.record_segment(data, came, since)
        if item.recorder.is_complete:
            self._store_sample(item)
            return
        # The bytes looked like the end of the response but were not: the connection's next bytes are not a reply.
        self._store_sample(item, outcome=FAILED, reason="the end of the stream came inside a chunk")
        if item.connection.socket_serial == item.socket_serial:
            self.abort_request(item.connection, FAILED, "the reply before it went on")

    # Time passes.

    def check_timeouts(self, connection: Connection, now: int) -> None:
        """Abort a request that takes too long, is silent, or never ends."""
        conversation, recorder = connection.conversation, connection.recorder
        if conversation is None:
            return
        mark = connection.parsed_count + len(connection.segments) + len(recorder.times)
        if mark != connection.progress_mark:
            connection.progress_mark, connection.active_at = mark, now
            if connection.sock is not None:
                sockets.acknowledge_rarely(connection.sock)
        if now - connection.active_at > 1_000_000_000 and connection.can_defer:
            self._parse_and_finish(connection)
            if connection.conversation is not conversation:
                return
        silent_ns = now - max(connection.active_at, connection.checked_at)
        if connection.stage == ConnectionStage.BUSY and silent_ns > SILENCE_CHECK_NS:
            connection.checked_at = now
            self.handle_event(connection, select.EPOLLIN)
            if connection.conversation is not conversation or connection.stage != ConnectionStage.BUSY:
                return
        recorder, load, reason = connection.recorder, self._load, ""
        events = len(recorder.times) + len(recorder.silent_times)
        if (now - (connection.sent or connection.assigned_at)) / 1e9 > load.timeout_s:
            reason = f"not over after {load.timeout_s:g} s"
        elif (now - connection.active_at) / 1e9 > load.stall_s:
            reason = f"silent for {load.stall_s:g} s"
        if recorder.done and (reason or now - min(connection.active_at, recorder.done_at) > DONE_GRACE_NS):
            # [DONE] arrived, the response's end did not.
            recorder.close(now)
            max_tokens, request_bytes = conversation.max_tokens, connection.request_bytes
            outcome, reason = judge_reply(recorder, max_tokens=max_tokens, request_bytes=request_bytes)
            self.abort_request(connection, outcome, reason)
            return
        if not reason and events > MAX_EVENTS_PER_TOKEN * conversation.max_tokens + 4096:
            reason = f"still streams after {events:,} events; {conversation.max_tokens:,} tokens were asked for"
        if reason:
            self.abort_request(connection, FAILED, reason)

    def abort_request(self, connection: Connection, outcome: int, reason: str) -> None:
        """End the request on a connection, and close it."""
        connection.parse_and_update()
        self._connections.drop_connection(connection)
        if connection.conversation is not None:
            connection.sent = connection.sent or connection.due
            self._finish_request(connection, time.monotonic_ns(), outcome=outcome, reason=reason)

    def cancel_all(self) -> None:
        """Store every running request as cancelled."""
        self._stopping = True
        for connection in self._connections.all:
            if connection.conversation is not None:
                self.abort_request(connection, CANCELLED, "interrupted")
