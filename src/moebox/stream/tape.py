"""What the bytes of one streamed reply said, and when each token of it came.

A Tape is fed the segments of one HTTP/1.1 response as they were read, each with its arrival time, and can be fed them
late and many at once: nothing here looks at a clock or a socket. However the same bytes are cut, the tape is the same.
Segments that look like the one before but for their text (see `shape`) never meet a JSON decoder; all others take the
long way through `Body`, the event splitter and `decode`.
"""

from array import array
from collections.abc import Sequence

from moebox.stream.body import Body
from moebox.stream.events import Event, decode, describe, recall, tokens_by_chunk
from moebox.stream.shape import END, Shape, parts_of, payload_of, shape_of, spread


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
        "estimated",
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
        self.estimated = 0  # whose time is known only to lie between two others
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

    def quick(self, segment: bytes, time: int, *, late: bool = False) -> bool:
        """Take a segment that is one event like the one before, at the cost of a few comparisons; False for any other.

        Only between two events (`quiet`). It pays to do this at once, while the bytes are in the processor's cache.
        `late` says that the reader was: events that came apart may then be in one segment, whose time is that of the
        last. They are given even gaps, and counted in `estimated`.
        """
        shape = self._shape
        if shape is None:
            return False
        size = shape.size(segment)
        if not size:
            return self._quick_many(segment, time, shape, late)
        self.times.append(time)
        self.kinds.append(shape.kind)
        self.sizes.append(size)
        self.events += 1
        return True

    def _quick_many(self, segment: bytes, time: int, shape: Shape, late: bool) -> bool:
        """`quick` for a few events that came together."""
        *parts, rest = segment.split(END)
        if rest or len(parts) < 2:
            return False
        sizes = [shape.size(part + END) for part in parts]
        if not all(sizes):
            return False
        count, last = len(sizes), self.times[-1]
        times = [last + (time - last) * i // count for i in range(1, count + 1)] if late else [time] * count
        self.estimated += count - 1 if late else 0
        self._keep(times, sizes, shape.kind)
        return True

    def feed(self, segments: Sequence[bytes], times: Sequence[int], *, late: bool = False) -> None:
        """Take what was read; `times[i]` is when `segments[i]` came. `late` as in `quick`."""
        shape = self._shape
        if shape is not None and self.body.between and (sizes := shape.sizes(segments, end=END)) is not None:
            self._keep(times, sizes, shape.kind)
            return
        parts, when, rest = parts_of(segments, times)
        if late and len(parts) > len(segments):
            when, moved = spread(when)
            self.estimated += moved
        at = 0
        while at < len(parts):
            upto = self._alike(parts, when, at)
            if upto == at:
                self._long_way(parts[at], when[at], whole=True)
                upto += 1
            at = upto
        if rest:
            self._long_way(rest, times[-1], whole=False)

    def _alike(self, parts: Sequence[bytes], times: Sequence[int], at: int) -> int:
        """Take the parts from `at` on that have the shape of the event before; where they end."""
        shape = self._shape
        if shape is None or not self.body.between or shape.opening not in parts[at]:
            return at
        upto = len(parts)
        while upto - 1 > at and shape.opening not in parts[upto - 1]:  # the end of a reply looks different
            upto -= 1
        sizes = shape.sizes(parts[at:upto])
        if sizes is None:  # something odd among them: only as far as single looks go
            upto = at + 1
            sizes = shape.sizes(parts[at:upto])
        if sizes is None:
            return at
        self._keep(times[at:upto], sizes, shape.kind)
        return upto

    def _keep(self, times: Sequence[int], sizes: Sequence[int], kind: int) -> None:
        self.times.extend(times)
        self.kinds.frombytes(bytes((kind,)) * len(times))
        self.sizes.extend(sizes)
        self.events += len(times)

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

    def _long_way(self, part: bytes, time: int, *, whole: bool) -> None:
        """Take bytes that need reading; `whole` parts were cut before the blank line of an event."""
        body = self.body
        if whole and body.between and body.streamed and (payload := payload_of(part)) is not None:
            self._take((payload,), time)
            return
        self._take(body.feed(part + END if whole else part), time)
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
            event = recall(payload)
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
