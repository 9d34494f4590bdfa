"""A request that is over: what became of it, put into the samples."""

from typing import NamedTuple

from moebox.bench.counting import CHECKED_REPLIES
from moebox.bench.generator.connection import Connection, ReadSegment, record_segments
from moebox.bench.generator.conversation import Conversation
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.samples import COMPLETED, EMPTY, FAILED, TRUNCATED, Samples
from moebox.stream.events import CONTENT, ESTIMATED_TIME

MAX_TEMPLATE_TOKENS = 8192  # tokens that a chat template may add: the longest that ship have a few thousand
MAX_EVENTS_PER_TOKEN = 16  # events for each token asked for: a server that streams letters sends a few


class FinishedRequest(NamedTuple):
    """One request's last state, its connection free for the next; `unread` is still to be looked at."""

    recorder: ReplyRecorder
    unread_segments: list[ReadSegment]
    conversation: Conversation
    turn: int
    due: int
    sent: int
    ended_at: int
    request_bytes: int  # bytes of the request
    connection: Connection
    socket_serial: int  # of the connection's socket

    def parse_unread(self) -> None:
        """Look at what is left."""
        record_segments(self.recorder, self.unread_segments)

    def add_to_samples(self, samples: Samples, *, outcome: int | None = None, reason: str = "") -> int:
        """Add it to the samples; what became of it."""
        recorder = self.recorder
        recorder.catch_up()
        if recorder.estimated_count:
            recorder.respace_first_events()
        if outcome is None:
            outcome, reason = judge_reply(
                recorder, max_tokens=self.conversation.max_tokens, request_bytes=self.request_bytes
            )
        if outcome == COMPLETED:
            recorder.add_silent_tokens()
        if self._text_is_needed(samples):
            samples.texts[len(samples)] = recorder.texts
        samples.add_request(
            recorder.times,
            recorder.tokens_by_event(),
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
            asked=self.conversation.max_tokens,
            turn=self.turn,
        )
        return outcome

    def _text_is_needed(self, samples: Samples) -> bool:
        """To count its tokens where the server did not, or to check some of the server's counts."""
        uncounted = self.recorder.completion_tokens < 0
        return self.conversation.keep_text and (uncounted or len(samples.texts) < CHECKED_REPLIES)

    @property
    def _ended(self) -> int:
        """A whole reply ended with its last event."""
        whole = self.recorder.is_complete and self.recorder.times
        return self.recorder.times[-1] if whole else self.ended_at

    @property
    def visible_text(self) -> str:
        """The visible part of the reply, where it was kept."""
        pairs = zip(self.recorder.texts, self.recorder.kinds, strict=False)
        return "".join(part for part, kind in pairs if kind & ~ESTIMATED_TIME == CONTENT)


def judge_reply(recorder: ReplyRecorder, *, max_tokens: int, request_bytes: int) -> tuple[int, str]:
    """What became of the request on this record, and why; `asked` tokens by a request of `size` bytes."""
    if recorder.error:
        return FAILED, recorder.error
    if not (recorder.done or recorder.finish_reason):
        return (TRUNCATED, "ended without [DONE]") if recorder.times else (FAILED, "ended before the first token")
    if recorder.body.missing_bytes:
        return FAILED, f"the body ended {recorder.body.missing_bytes:,} bytes short of its content-length"
    if reason := usage_error(recorder, max_tokens=max_tokens, request_bytes=request_bytes):
        return FAILED, reason
    if not recorder.times and recorder.completion_tokens <= 0:
        return EMPTY, "no token came"
    return COMPLETED, ""


def usage_error(recorder: ReplyRecorder, *, max_tokens: int, request_bytes: int) -> str:
    """Why the server's counts cannot be those of this reply; "" when they can.

    A reply has no more tokens than were asked for, or, from a server that does not obey, than its text has bytes; a
    prompt no more than the request and a chat template have.
    """
    output, prompt, events = recorder.completion_tokens, recorder.prompt_tokens, len(recorder.times)
    if not output and events:
        return f"usage counts no tokens in {events:,} events"
    least = min(recorder.sizes, default=0)
    text = sum(recorder.sizes) - least * events + events  # at least a byte each
    if output > max(max_tokens, text):
        return f"usage counts {output:,} tokens in {events:,} events; {max_tokens:,} were asked for"
    if prompt > request_bytes + MAX_TEMPLATE_TOKENS:
        return f"usage counts {prompt:,} tokens in a prompt of {request_bytes:,} bytes"
    return ""


def runaway_reason(recorder: ReplyRecorder, *, max_tokens: int) -> str:
    """Why a stream is not worth waiting for; "" while it is."""
    events = len(recorder.times) + len(recorder.silent_times)
    if events <= MAX_EVENTS_PER_TOKEN * max_tokens + 4096:
        return ""
    return f"still streams after {events:,} events; {max_tokens:,} tokens were asked for"
