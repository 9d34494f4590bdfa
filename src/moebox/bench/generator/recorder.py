"""What the bytes of one streamed reply said, and when each token of it came.

A Recorder is fed the segments of one HTTP/1.1 response as they were read, each with its arrival time, and can be fed
late and with many at once: nothing here looks at a clock or a socket. However the same bytes are cut, the record is the
same. Events that look like the one before but for their text (see `template`) never meet a JSON decoder; all others are
decoded, and what does not come as whole chunks of one event goes through `Body` and its event splitter before that.
Nothing is remembered beyond the reply.
"""

from array import array
from collections.abc import Sequence

from moebox.bench.generator.template import END, Template, chunk_at, template_of
from moebox.redact import decode_reply
from moebox.stream.body import ResponseBody
from moebox.stream.events import ESTIMATED_TIME, SILENT, StreamEvent, decode_event, describe_error, tokens_by_chunk
from moebox.stream.sse import is_done_mark

LAST = b"0\r\n\r\n"  # the empty chunk that ends a response


class Recorder:
    """One reply on record. `times`, `kinds` and `sizes` hold one entry for each event that carried tokens."""

    __slots__ = (
        "_all",
        "body",
        "cached_tokens",
        "completion_tokens",
        "counts",
        "done",
        "done_at",
        "error",
        "estimated",
        "events",
        "finish",
        "keep",
        "kinds",
        "prompt_tokens",
        "reasoning_tokens",
        "silent",
        "since",
        "sizes",
        "template",
        "text",
        "times",
    )

    def __init__(self, *, keep: bool = False, since: int = 0) -> None:
        self.body = ResponseBody()
        self.times = array("q")  # arrival, in the nanoseconds of whoever feeds
        self.kinds = array("B")
        self.since = since  # when the request was sent: nothing of its reply came before
        self.silent: list[int] = []  # arrival of events with an empty delta, or of the finish: tokens without text
        self.sizes = array("I")  # bytes of the event: how tokens are shared out when one event holds several
        self.counts: list[
            int
        ] = []  # completion tokens so far as the server counts them, where it says so in each event
        self.events = 0  # of any kind, comments aside
        self.estimated = 0  # whose time is known only to lie between two others
        self.finish = ""
        self.error = ""
        self.done = False  # [DONE] came
        self.done_at = 0  # when
        self.completion_tokens = self.prompt_tokens = self.cached_tokens = self.reasoning_tokens = -1  # -1: not told
        self.keep = keep
        self.text: list[str] = []
        self.template: Template | None = None  # of the event before, when the next may be told by its bytes alone
        self._all = keep  # text wanted, or usage in every event: each one must be decoded

    @property
    def complete(self) -> bool:
        """The response has ended, as HTTP frames it."""
        return self.body.is_complete

    @property
    def quiet(self) -> bool:
        """Between two events of a chunked stream: a segment that ends as events do can wait to be looked at."""
        return self.body.at_boundary and self.body.streamed

    def quick(self, segment: bytes, time: int, since: int = 0) -> bool:
        """Take a segment of events like the one before, at the cost of a few comparisons; False for any other.

        Only between two events (`quiet`). It pays to do this at once, while the bytes are in the processor's cache.
        `since` says that the reader had been away since then: events that came apart may then be in one segment, whose
        time is that of the last. The others are placed at even steps, none before `since`, and marked as guessed.
        """
        template = self.template
        if template is None:
            return False
        sizes, end = template.run(segment)
        if end < len(segment):
            return False
        self.catch_up()
        self._keep(time, sizes, template.kind)
        self._guess(len(self.times) - len(sizes), since)
        return True

    def catch_up(self) -> None:
        """Note the kinds of events that were taken by adding to `times` and `sizes` alone."""
        missing = len(self.times) - len(self.kinds)
        if missing and self.template is not None:
            self.kinds.frombytes(bytes((self.template.kind,)) * missing)
            self.events += missing

    def feed(self, segments: Sequence[bytes], times: Sequence[int]) -> None:
        """Record what was read; `times[i]` is when `segments[i]` came."""
        for segment, time in zip(segments, times, strict=True):
            self.record(segment, time)

    def record(self, segment: bytes, time: int, since: int = 0) -> None:
        """Record one segment, whatever is in it; `since` as in `quick`."""
        self.catch_up()
        before = len(self.times)
        self._read(segment, time)
        self._guess(before, since)

    def _guess(self, first: int, since: int) -> None:
        """The events from `first` on were in one segment: if the reader was away, only the last one's time is known."""
        times, last = self.times, len(self.times) - 1
        if not since or last <= first:
            return
        since = max(since, self.since)
        start, end = times[first - 1] if first else since, times[last]
        for i in range(first, last):
            times[i] = min(end, max(since, start + (end - start) * (i + 1 - first) // (last + 1 - first)))
            self.kinds[i] |= ESTIMATED_TIME
        self.estimated += last - first

    def rewind(self) -> None:
        """Place the first events, where they were read late and together, one usual gap of this reply apart.

        When they came there was no event before to tell a usual gap by.
        """
        times = self.times
        count = next((i for i, kind in enumerate(self.kinds) if not kind & ESTIMATED_TIME), 0)
        sure = self._sure_gaps(count)
        if not count or not sure:
            return
        since = max(self.since, ((count + 1) * times[0] - times[count]) // count)  # see `_guess`
        usual = sorted(sure)[len(sure) // 2]
        for i in range(count):
            times[i] = min(times[count], max(since, times[count] - (count - i) * usual))

    def _sure_gaps(self, first: int) -> list[int]:
        """Gaps behind event `first` whose both ends are known."""
        times, kinds = self.times, self.kinds
        later = range(first + 1, len(times))
        return [times[i] - times[i - 1] for i in later if not (kinds[i] | kinds[i - 1]) & ESTIMATED_TIME]

    def count_silent(self) -> None:
        """Tokens that the server counted and did not show came with its empty events, the last at the latest."""
        if self.times or self.completion_tokens <= 0 or not self.silent:
            return
        shown = self.silent[: self.completion_tokens] if len(self.silent) > 1 else self.silent
        self.times.extend(shown)
        self.kinds.frombytes(bytes((SILENT,)) * len(shown))
        self.sizes.extend([1] * len(shown))
        if self.keep:
            self.text.extend([""] * len(shown))

    def _read(self, segment: bytes, time: int) -> None:
        at, length, body = 0, len(segment), self.body
        while at < length:
            if body.at_boundary and body.streamed:
                at = self._chunks(segment, at, time)
                if at == length:
                    return
            # Up to where the next event may begin with its chunk; what follows a response's end is nobody's.
            end = segment.find(b"\r\n\r\n" if body.is_untouched else END, at)
            end = end + 4 if end >= 0 and not body.is_complete else length
            self._take(body.feed(segment[at:end]), time)
            self._settle()
            at = end

    def _chunks(self, segment: bytes, at: int, time: int) -> int:
        """Record chunks of one event each from `at` on, and the end behind them; where something else begins."""
        length, tried = len(segment), None
        while at < length:
            if self.template is not tried and self.template is not None:
                tried = self.template
                sizes, at = tried.run(segment, at)
                if sizes:
                    self._keep(time, sizes, tried.kind)
            if (chunk := chunk_at(segment, at)) is None:
                break
            self._take((chunk[0],), time)
            at = chunk[1]
        if length - at == len(LAST) and segment.endswith(LAST):
            self.body.mark_complete()
            return length
        return at

    def _keep(self, time: int, sizes: Sequence[int], kind: int) -> None:
        """Events of one kind that came at one time."""
        count = len(sizes)
        self.times.extend([time] * count)
        self.kinds.frombytes(bytes((kind,)) * count)
        self.sizes.extend(sizes)
        self.events += count

    def end(self, time: int) -> None:
        """The connection closed; an event that was whole but for its blank line still counts."""
        self.catch_up()
        if self.body.is_complete:
            return
        self._take(self.body.close(), time, cut=True)
        self._settle()
        if not self.body.status and not self.error:
            self.error = "the server closed the connection without an answer"

    def tokens(self) -> "array[int]":
        """How many tokens each event carried, summing to the server's own count where it gave one."""
        return tokens_by_chunk(self.sizes, self.counts, self.completion_tokens)

    def _settle(self) -> None:
        body = self.body
        if body.problem and not self.error:
            self.error = body.problem
        if body.is_complete and not body.streamed and body.status and not body.problem:
            self._whole()

    def _take(self, payloads: Sequence[bytes], time: int, *, cut: bool = False) -> None:
        for payload in payloads:
            self.events += 1
            if not self.done and is_done_mark(payload):
                self.done, self.done_at, self.template = True, time, None
            if self.done:  # what follows belongs to no reply
                continue
            event = decode_event(payload)
            if event is None:
                if cut:  # half an event: the stream was cut, which `done` and `finish` tell
                    self.events -= 1
                elif not self.error:
                    self.error = f"an event that is not JSON: {decode_reply(payload)[:60]!r}"
                continue
            self._note(event, len(payload), time)
            if event.kind and not self._all and not event.usage and not event.finish:
                self.template = template_of(payload, event.kind)

    def _note(self, event: StreamEvent, size: int, time: int) -> None:
        if event.error and not self.error:
            self.error = event.error
        if event.silent or (event.finish and not event.kind and not self.silent):
            self.silent.append(time)
        if event.finish:
            self.finish = event.finish
        if event.usage:
            prompt, completion, cached, reasoning = event.usage
            self.prompt_tokens, self.completion_tokens = prompt, completion
            self.cached_tokens, self.reasoning_tokens = cached, reasoning
        if event.kind:
            if event.usage:
                self._all, self.template = True, None
                self.counts.append(max(0, self.completion_tokens))
            self.times.append(time)
            self.kinds.append(event.kind)
            self.sizes.append(size)
            if self.keep:
                self.text.append(event.text)

    def _whole(self) -> None:
        """A reply that did not stream: an HTTP error, or a server that ignores `stream`."""
        payload = bytes(self.body.rest)
        self.body.rest.clear()
        if self.body.status != 200:
            self.error = describe_error(self.body.status, payload)
            return
        event = decode_event(payload)
        if event is None:
            self.error = self.error or f"neither events nor JSON came back: {decode_reply(payload)[:60]!r}"
            return
        self.events = 1
        self.error = event.error or "a whole JSON reply came instead of a stream"
