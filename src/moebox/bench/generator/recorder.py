"""Record one streamed reply: its content, its counts, and when each token arrived.

A recorder is fed the segments of one HTTP/1.1 response as they were read, each with its arrival time, and can be fed
late and with many at once: nothing here uses a clock or a socket. However the same bytes are cut, the record is the
same. Events that differ from the previous one only in their text (see `template`) are never parsed as JSON; all others
are decoded, and what is not a whole chunk of one event goes through `ResponseBody` and its event parser before that.
Nothing is kept beyond the reply.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox.bench.generator.template import EVENT_END, EventTemplate, find_template, parse_chunk
from moebox.redact import decode_reply
from moebox.stream.body import BodyState, ResponseBody
from moebox.stream.events import ESTIMATED_TIME, SILENT, StreamEvent, decode_event, describe_error, tokens_by_chunk
from moebox.stream.sse import is_done_mark

LAST_CHUNK = b"0\r\n\r\n"  # the empty chunk that ends a response


@dataclass(slots=True, eq=False)
class ReplyRecorder:
    """The record of one reply. `times`, `kinds` and `sizes` hold one entry for each event that carried tokens."""

    keep_text: bool = False
    sent_at: int = 0  # nothing of the reply can have arrived before
    body: ResponseBody = field(default_factory=ResponseBody)
    times: "array[int]" = field(default_factory=lambda: array("q"))  # arrival in ns, on the caller's clock
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    # Bytes of the event: they divide the tokens if one event holds several.
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    silent_times: list[int] = field(default_factory=list)  # arrivals of empty deltas or of the finish: no text
    counts: list[int] = field(default_factory=list)  # tokens so far, if the server reports them in each event
    estimated_count: int = 0  # events whose time is only known to lie between two others
    finish_reason: str = ""
    error: str = ""
    done: bool = False  # [DONE] arrived
    done_at: int = 0
    completion_tokens: int = -1  # -1: unknown, as the two below
    prompt_tokens: int = -1
    cached_tokens: int = -1
    texts: list[str] = field(default_factory=list)
    template: EventTemplate | None = None  # of the previous event, if it can recognize the next one

    def take_fast(self, segment: bytes, time: int, since: int = 0) -> bool:
        """Take a segment of events like the previous one, at the cost of a few comparisons; False for any other.

        Only between two events. Doing it at once is cheap, while the bytes are in the processor's cache. `since` is
        set if the stream was not read since then: events that arrived apart may then be in one segment, whose time is
        that of the last. The others are placed at even steps, none before `since`, and marked as estimated.
        """
        template = self.template
        if template is None:
            return False
        sizes, end = template.match_run(segment)
        if end < len(segment):
            return False
        self.catch_up()
        self._add_events(time, sizes, template.kind)
        self._estimate_times(len(self.times) - len(sizes), since)
        return True

    def catch_up(self) -> None:
        """Add the kinds of events that the hot path added to `times` and `sizes` alone."""
        missing = len(self.times) - len(self.kinds)
        if missing and self.template is not None:
            self.kinds.frombytes(bytes((self.template.kind,)) * missing)

    def record_segment(self, segment: bytes, time: int, since: int = 0) -> None:
        """Record one segment of any content; `since` as in `take_fast`."""
        self.catch_up()
        before = len(self.times)
        at, length, body = 0, len(segment), self.body
        while at < length:
            if body.at_boundary:
                at = self._take_chunks(segment, at, time)
                if at == length:
                    break
            # Up to where the next event may begin with its chunk; bytes behind the response's end are ignored.
            end = segment.find(b"\r\n\r\n" if body.is_untouched else EVENT_END, at)
            end = end + 4 if end >= 0 and not body.is_complete else length
            self._take_payloads(body.feed(segment[at:end]), time)
            self._check_body()
            at = end
        self._estimate_times(before, since)

    def _estimate_times(self, first: int, since: int) -> None:
        """Estimate the times of the events from `first` on, which were in one segment, if `since` is set.

        Only the last one's time is known.
        """
        times, last = self.times, len(self.times) - 1
        if not since or last <= first:
            return
        since = max(since, self.sent_at)
        start, end = times[first - 1] if first else since, times[last]
        for i in range(first, last):
            times[i] = min(end, max(since, start + (end - start) * (i + 1 - first) // (last + 1 - first)))
            self.kinds[i] |= ESTIMATED_TIME
        self.estimated_count += last - first

    def respace_first_events(self) -> None:
        """Place the first events, if they were read late and together, one usual gap of this reply apart.

        When they arrived there was no earlier event that could give a usual gap.
        """
        times, kinds = self.times, self.kinds
        count = next((i for i, kind in enumerate(kinds) if not kind & ESTIMATED_TIME), 0)
        later = range(count + 1, len(times))
        gaps = sorted(times[i] - times[i - 1] for i in later if not (kinds[i] | kinds[i - 1]) & ESTIMATED_TIME)
        if not count or not gaps:
            return
        since = max(self.sent_at, ((count + 1) * times[0] - times[count]) // count)  # see `_estimate_times`
        usual = gaps[len(gaps) // 2]
        for i in range(count):
            times[i] = min(times[count], max(since, times[count] - (count - i) * usual))

    def add_silent_tokens(self) -> None:
        """Add tokens that the server counted but did not show: they came with its empty events."""
        if self.times or self.completion_tokens <= 0 or not self.silent_times:
            return
        shown = self.silent_times[: self.completion_tokens] if len(self.silent_times) > 1 else self.silent_times
        self.times.extend(shown)
        self.kinds.frombytes(bytes((SILENT,)) * len(shown))
        self.sizes.extend([1] * len(shown))
        if self.keep_text:
            self.texts.extend([""] * len(shown))

    def _take_chunks(self, segment: bytes, at: int, time: int) -> int:
        """Record chunks of one event each from `at` on, and the response's end; return where anything else begins."""
        length, tried = len(segment), None
        while at < length:
            if self.template is not tried and self.template is not None:
                tried = self.template
                sizes, at = tried.match_run(segment, at)
                if sizes:
                    self._add_events(time, sizes, tried.kind)
            if (chunk := parse_chunk(segment, at)) is None:
                break
            self._take_payloads((chunk[0],), time)
            at = chunk[1]
        if length - at == len(LAST_CHUNK) and segment.endswith(LAST_CHUNK):
            self.body.state = BodyState.OVER
            return length
        return at

    def _add_events(self, time: int, sizes: Sequence[int], kind: int) -> None:
        count = len(sizes)
        self.times.extend([time] * count)
        self.kinds.frombytes(bytes((kind,)) * count)
        self.sizes.extend(sizes)

    def close(self, time: int) -> None:
        """Finish the record when the connection closed; an event that lacks only its blank line still counts."""
        self.catch_up()
        if self.body.is_complete:
            return
        self._take_payloads(self.body.close(), time, connection_closed=True)
        self._check_body()
        if not self.body.status and not self.error:
            self.error = "the server closed the connection without an answer"

    def tokens_by_event(self) -> "array[int]":
        """Return the tokens of each event; they add up to the server's own count if it gave one."""
        return tokens_by_chunk(self.sizes, self.counts, self.completion_tokens)

    def _check_body(self) -> None:
        """Record a framing error, or a reply that did not stream: an HTTP error, or a server that ignores `stream`."""
        body = self.body
        if body.problem and not self.error:
            self.error = body.problem
        if not body.is_complete or body.streamed or not body.status or body.problem:
            return
        payload = bytes(body.rest)
        body.rest.clear()
        if body.status != 200:
            self.error = describe_error(body.status, payload)
            return
        event = decode_event(payload)
        if event is None:
            self.error = self.error or f"neither events nor JSON came back: {decode_reply(payload)[:60]!r}"
            return
        self.error = event.error or "a whole JSON reply came instead of a stream"

    def _take_payloads(self, payloads: Sequence[bytes], time: int, *, connection_closed: bool = False) -> None:
        for payload in payloads:
            if not self.done and is_done_mark(payload):
                self.done, self.done_at, self.template = True, time, None
            if self.done:  # what follows is not part of the reply
                continue
            event = decode_event(payload)
            if event is None:
                # Half an event at the end means that the stream was cut, which `done` and `finish_reason` show.
                if not self.error and not connection_closed:
                    self.error = f"an event that is not JSON: {decode_reply(payload)[:60]!r}"
                continue
            self._add_event(event, len(payload), time)
            if event.kind and not (self.keep_text or self.counts or event.usage or event.finish):
                self.template = find_template(payload, event.kind)

    def _add_event(self, event: StreamEvent, size: int, time: int) -> None:
        if event.error and not self.error:
            self.error = event.error
        if event.silent or (event.finish and not event.kind and not self.silent_times):
            self.silent_times.append(time)
        if event.finish:
            self.finish_reason = event.finish
        if event.usage:
            self.prompt_tokens, self.completion_tokens, self.cached_tokens = event.usage
        if event.kind:
            if event.usage:
                self.template = None
                self.counts.append(max(0, self.completion_tokens))
            self.times.append(time)
            self.kinds.append(event.kind)
            self.sizes.append(size)
            if self.keep_text:
                self.texts.append(event.text)
