"""What the bytes of one streamed reply said, and when each token of it came.

A Tape is fed the segments of one HTTP/1.1 response as they were read, each with its arrival time, and can be fed them
late and many at once: nothing here looks at a clock or a socket. However the same bytes are cut, the tape is the same.
Segments that look like the one before but for their text (see `shape`) never meet a JSON decoder; all others take the
long way through `Body`, the event splitter and `decode`.
"""

from array import array
from collections.abc import Sequence

from moebox.stream.body import Body
from moebox.stream.events import Event, decode, describe, tokens_by_chunk
from moebox.stream.shape import Shape, payload_of, pieces, shape_of, sizes


class Tape:
    """One reply on record. `times`, `kinds` and `sizes` hold one entry for each event that carried tokens."""

    __slots__ = (
        "_all",
        "_shape",
        "body",
        "cached_tokens",
        "completion_tokens",
        "counts",
        "done",
        "error",
        "events",
        "finish",
        "keep",
        "kinds",
        "prompt_tokens",
        "reasoning_tokens",
        "sizes",
        "text",
        "times",
    )

    def __init__(self, *, keep: bool = False) -> None:
        self.body = Body()
        self.times = array("q")  # arrival, in the nanoseconds of whoever feeds
        self.kinds = array("B")
        self.sizes = array("I")  # bytes of the event: how tokens are shared out when one event holds several
        self.counts = array("I")  # completion tokens so far as the server counts them, where it says so in each event
        self.events = 0  # of any kind, comments aside
        self.finish = ""
        self.error = ""
        self.done = False  # [DONE] came
        self.completion_tokens = self.prompt_tokens = self.cached_tokens = self.reasoning_tokens = -1  # -1: not told
        self.keep = keep
        self.text: list[str] = []
        self._shape: Shape | None = None  # of the event before, when the next may be told by its bytes alone
        self._all = keep  # text wanted, or usage in every event: each one must be decoded

    @property
    def complete(self) -> bool:
        """The response has ended, as HTTP frames it."""
        return self.body.complete

    @property
    def quiet(self) -> bool:
        """Between two events of a chunked stream: a segment that ends as events do can wait to be looked at."""
        return self.body.between and self.body.streamed

    def feed(self, segments: Sequence[bytes], times: Sequence[int]) -> None:
        """Take what was read; `times[i]` is when `segments[i]` came."""
        at = self._alike(segments, times, 0)
        if at == len(segments):
            return
        segments, times = pieces(segments[at:], times[at:])  # many chunks may have come together, or part of one
        at = 0
        while at < len(segments):
            at += self._alike(segments, times, at)
            if at < len(segments):
                self._long_way(segments[at], times[at])
                at += 1

    def _alike(self, segments: Sequence[bytes], times: Sequence[int], at: int) -> int:
        """Take the segments from `at` on that have the shape of the event before; how many they are."""
        shape = self._shape
        if shape is None or not self.body.between or not segments:
            return 0
        run = shape.run(segments, at)
        if run > at:
            self.times.extend(times[at:run])
            self.kinds.frombytes(bytes((shape.kind,)) * (run - at))
            self.sizes.extend(sizes(segments[at:run]))
            self.events += run - at
        return run - at

    def end(self, time: int) -> None:
        """The connection closed; an event that was whole but for its blank line still counts."""
        if self.body.complete:
            return
        self._take(self.body.end(), time, cut=True)
        self._settle(time)
        if not self.body.status and not self.error:
            self.error = "the server closed the connection without an answer"

    def tokens(self) -> "array[int]":
        """How many tokens each event carried, summing to the server's own count where it gave one."""
        return tokens_by_chunk(self.sizes, self.counts, self.completion_tokens)

    def _long_way(self, segment: bytes, time: int) -> None:
        if self.body.between and self.body.streamed and (payload := payload_of(segment)) is not None:
            self._take((payload,), time)
            return
        self._take(self.body.feed(segment), time)
        self._settle(time)

    def _settle(self, time: int) -> None:
        body = self.body
        if body.problem and not self.error:
            self.error = body.problem
        if body.complete and not body.streamed and body.status and not body.problem:
            self._whole(time)

    def _take(self, payloads: Sequence[bytes], time: int, *, cut: bool = False) -> None:
        for payload in payloads:
            self.events += 1
            if payload == b"[DONE]":
                self.done = True
                continue
            event = decode(payload)
            if event is None:
                if cut:  # half an event: the stream was cut, which `done` and `finish` tell
                    self.events -= 1
                elif not self.error:
                    self.error = f"an event that is not JSON: {payload[:60]!r}"
                continue
            self._note(event, len(payload), time)
            if event.kind and not self._all and not event.usage and not event.finish:
                self._shape = shape_of(payload, event.kind)

    def _note(self, event: Event, size: int, time: int) -> None:
        if event.error and not self.error:
            self.error = event.error
        if event.finish:
            self.finish = event.finish
        if event.usage:
            prompt, completion, cached, reasoning = event.usage
            self.prompt_tokens, self.completion_tokens = prompt, completion
            self.cached_tokens, self.reasoning_tokens = cached, reasoning
        if event.kind:
            if event.usage:
                self._all, self._shape = True, None
                self.counts.append(max(0, self.completion_tokens))
            self.times.append(time)
            self.kinds.append(event.kind)
            self.sizes.append(size)
            if self.keep:
                self.text.append(event.text)

    def _whole(self, time: int) -> None:
        """A reply that did not stream: an HTTP error, or a server that ignores `stream`."""
        payload = bytes(self.body.rest)
        self.body.rest.clear()
        if self.body.status != 200:
            self.error = describe(self.body.status, payload)
            return
        event = decode(payload)
        if event is None:
            self.error = self.error or f"neither events nor JSON came back: {payload[:60]!r}"
            return
        self.events, self.done = 1, True
        self._note(event, len(payload), time)
