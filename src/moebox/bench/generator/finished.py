"""A request that is over: what became of it, put into the samples."""

from typing import NamedTuple

from moebox.bench.counting import CHECKED
from moebox.bench.generator.connection import Connection, Got, feed
from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.recorder import Recorder
from moebox.bench.samples import COMPLETED, EMPTY, FAILED, TRUNCATED, Samples
from moebox.stream.events import CONTENT, ESTIMATED_TIME

TEMPLATE = 8192  # tokens that a chat template may add: the longest that ship have a few thousand
PAST_THE_END = 16  # events for each token asked for: a server that streams letters sends a few


class Finished(NamedTuple):
    """One request's last state, its connection free for the next; `unread` is still to be looked at."""

    recorder: Recorder
    unread: list[Got]
    conversation: Conversation
    turn: int
    due: int
    sent: int
    at: int
    size: int  # bytes of the request
    connection: Connection
    serial: int  # of the connection's socket

    def read(self) -> None:
        """Look at what is left."""
        feed(self.recorder, self.unread)

    def keep(self, samples: Samples, *, outcome: int | None = None, reason: str = "") -> int:
        """Add it to the samples; what became of it."""
        recorder = self.recorder
        recorder.catch_up()
        if recorder.estimated:
            recorder.rewind()
        if outcome is None:
            outcome, reason = judge(recorder, asked=self.conversation.asked, size=self.size)
        if outcome == COMPLETED:
            recorder.count_silent()
        if self._text_is_needed(samples):
            samples.texts[len(samples)] = recorder.text
        samples.add(
            recorder.times,
            recorder.tokens(),
            recorder.kinds,
            reason=reason,
            due=self.due,
            sent=self.sent,
            ended=self._ended,
            index=self.conversation.index,
            outcome=outcome,
            status=recorder.body.status,
            prompt=recorder.prompt_tokens,
            output=recorder.completion_tokens,
            cached=recorder.cached_tokens,
            asked=self.conversation.asked,
            turn=self.turn,
        )
        return outcome

    def _text_is_needed(self, samples: Samples) -> bool:
        """To count its tokens where the server did not, or to check some of the server's counts."""
        uncounted = self.recorder.completion_tokens < 0
        return self.conversation.keep and (uncounted or len(samples.texts) < CHECKED)

    @property
    def _ended(self) -> int:
        """A whole reply ended with its last event."""
        whole = self.recorder.complete and self.recorder.times
        return self.recorder.times[-1] if whole else self.at

    @property
    def text(self) -> str:
        """The visible part of the reply, where it was kept."""
        pairs = zip(self.recorder.text, self.recorder.kinds, strict=False)
        return "".join(part for part, kind in pairs if kind & ~ESTIMATED_TIME == CONTENT)


def judge(recorder: Recorder, *, asked: int, size: int) -> tuple[int, str]:
    """What became of the request on this record, and why; `asked` tokens by a request of `size` bytes."""
    if recorder.error:
        return FAILED, recorder.error
    if not (recorder.done or recorder.finish):
        return (TRUNCATED, "ended without [DONE]") if recorder.times else (FAILED, "ended before the first token")
    if recorder.body.missing_bytes:
        return FAILED, f"the body ended {recorder.body.missing_bytes:,} bytes short of its content-length"
    if reason := miscount(recorder, asked=asked, size=size):
        return FAILED, reason
    if not recorder.times and recorder.completion_tokens <= 0:
        return EMPTY, "no token came"
    return COMPLETED, ""


def miscount(recorder: Recorder, *, asked: int, size: int) -> str:
    """Why the server's counts cannot be those of this reply; "" when they can.

    A reply has no more tokens than were asked for, or, from a server that does not obey, than its text has bytes; a
    prompt no more than the request and a chat template have.
    """
    output, prompt, events = recorder.completion_tokens, recorder.prompt_tokens, len(recorder.times)
    if not output and events:
        return f"usage counts no tokens in {events:,} events"
    least = min(recorder.sizes, default=0)
    text = sum(recorder.sizes) - least * events + events  # at least a byte each
    if output > max(asked, text):
        return f"usage counts {output:,} tokens in {events:,} events; {asked:,} were asked for"
    if prompt > size + TEMPLATE:
        return f"usage counts {prompt:,} tokens in a prompt of {size:,} bytes"
    return ""


def endless(recorder: Recorder, *, asked: int) -> str:
    """Why a stream is not worth waiting for; "" while it is."""
    events = len(recorder.times) + len(recorder.silent)
    if events <= PAST_THE_END * asked + 4096:
        return ""
    return f"still streams after {events:,} events; {asked:,} tokens were asked for"
