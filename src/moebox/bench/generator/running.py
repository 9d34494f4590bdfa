"""A request from its assignment to a connection until it is over: its outcome, and the sample that it becomes."""

from dataclasses import dataclass, field

from moebox.bench.generator.job import CHECKED_REPLIES, Conversation
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.samples import COMPLETED, EMPTY, FAILED, TRUNCATED, Samples
from moebox.stream.events import CONTENT, ESTIMATED_TIME

MAX_TEMPLATE_TOKENS = 8192  # that a chat template may add: the longest that ship have a few thousand
MAX_EVENTS_PER_TOKEN = 16  # of a runaway stream, for each token asked for: a server that streams letters sends a few


Judgement = tuple[int, str]  # outcome, and the reason unless it completed
ReadSegment = tuple[bytes, int, int]  # bytes; CLOCK_MONOTONIC ns of arrival; since when the stream was not read, or 0


@dataclass(slots=True, eq=False)
class RunningRequest:
    """The turn of a conversation that is on a connection, with what came back so far; times are CLOCK_MONOTONIC ns."""

    conversation: Conversation
    due: int
    assigned_at: int
    active_at: int  # when anything last happened
    recorder: ReplyRecorder
    sent: int = 0
    ended_at: int = 0
    request_bytes: int = 0
    segments: list[ReadSegment] = field(default_factory=list)  # read and not parsed yet
    parsed_count: int = 0
    progress_mark: int = 0

    def parse_segments(self) -> None:
        for data, came, since in self.segments:
            self.recorder.record_segment(data, came, since)
        self.parsed_count += len(self.segments)
        self.segments.clear()

    def add_to_samples(self, samples: Samples, judged: Judgement | None = None) -> int:
        """Add the request to the samples and return its outcome, which is judged unless it is given."""
        recorder, conversation = self.recorder, self.conversation
        recorder.catch_up()
        if recorder.estimated_count:
            recorder.respace_first_events()
        outcome, reason = judged or self.judge_reply()
        if outcome == COMPLETED:
            recorder.add_silent_tokens()
        # The text is needed to count tokens that the server did not count, or to check some of its counts.
        if conversation.keep_text and (recorder.completion_tokens < 0 or len(samples.texts) < CHECKED_REPLIES):
            samples.texts[len(samples)] = recorder.texts
        samples.add_request(
            recorder.times,
            recorder.tokens_by_event(),
            recorder.kinds,
            reason=reason,
            due=self.due,
            sent=self.sent,
            ended=recorder.times[-1] if recorder.body.is_complete and recorder.times else self.ended_at,
            index=conversation.index,
            outcome=outcome,
            status=recorder.body.status,
            prompt=recorder.prompt_tokens,
            output=recorder.completion_tokens,
            cached=recorder.cached_tokens,
            asked=conversation.max_tokens,
            turn=conversation.turn,
        )
        return outcome

    def judge_reply(self) -> Judgement:
        """Return the outcome by what came back, and the reason unless it completed.

        The server's counts are refused if they cannot be true: a reply has no more tokens than were asked for or, from
        a server that ignores the limit, than its text has bytes; a prompt no more than the request and a chat template
        have.
        """
        recorder, max_tokens, request_bytes = self.recorder, self.conversation.max_tokens, self.request_bytes
        output, prompt, events = recorder.completion_tokens, recorder.prompt_tokens, len(recorder.times)
        if recorder.error:
            return FAILED, recorder.error
        if not (recorder.done or recorder.finish_reason):
            return (TRUNCATED, "ended without [DONE]") if events else (FAILED, "ended before the first token")
        if not output and events:
            return FAILED, f"usage counts no tokens in {events:,} events"
        text_bytes = sum(recorder.sizes) - min(recorder.sizes, default=0) * events + events  # at least a byte each
        if output > max(max_tokens, text_bytes):
            return FAILED, f"usage counts {output:,} tokens in {events:,} events; {max_tokens:,} were asked for"
        if prompt > request_bytes + MAX_TEMPLATE_TOKENS:
            return FAILED, f"usage counts {prompt:,} tokens in a prompt of {request_bytes:,} bytes"
        if not events and (output <= 0 or not recorder.silent_times):
            return EMPTY, "no token came"
        return COMPLETED, ""

    @property
    def visible_text(self) -> str:
        """The visible part of the reply, if its text was kept."""
        pairs = zip(self.recorder.texts, self.recorder.kinds, strict=False)
        return "".join(part for part, kind in pairs if kind & ~ESTIMATED_TIME == CONTENT)
