"""A request that is over: what became of it, put into the samples."""

from typing import NamedTuple

from moebox.bench.counting import CHECKED
from moebox.bench.lane import Got, feed
from moebox.bench.samples import COMPLETED, EMPTY, FAILED, TRUNCATED, Samples
from moebox.bench.talk import Talk
from moebox.stream import Tape
from moebox.stream.events import CONTENT, GUESSED

TEMPLATE = 8192  # tokens that a chat template may add: the longest that ship have a few thousand


class Ended(NamedTuple):
    """One request's last state, its lane free for the next; `unread` is still to be looked at."""

    tape: Tape
    unread: list[Got]
    talk: Talk
    turn: int
    due: int
    sent: int
    at: int
    size: int  # bytes of the request

    def read(self) -> None:
        """Look at what is left."""
        feed(self.tape, self.unread)

    def keep(self, samples: Samples, *, outcome: int | None = None, reason: str = "") -> int:
        """Add it to the samples; what became of it."""
        tape = self.tape
        tape.catch_up()
        if tape.estimated:
            tape.rewind()
        if outcome is None:
            outcome, reason = judge(tape, asked=self.talk.asked, size=self.size)
        if outcome == COMPLETED:
            tape.count_silent()
        if self.talk.keep and (tape.completion_tokens < 0 or len(samples.texts) < CHECKED):
            samples.texts[len(samples)] = tape.text
        samples.add(
            tape.times,
            tape.tokens(),
            tape.kinds,
            reason=reason,
            due=self.due,
            sent=self.sent,
            ended=tape.times[-1] if tape.complete and tape.times else self.at,
            index=self.talk.index,
            outcome=outcome,
            status=tape.body.status,
            prompt=tape.prompt_tokens,
            output=tape.completion_tokens,
            cached=tape.cached_tokens,
            asked=self.talk.asked,
            turn=self.turn,
        )
        return outcome

    @property
    def text(self) -> str:
        """The visible part of the reply, where it was kept."""
        tape = self.tape
        return "".join(part for part, kind in zip(tape.text, tape.kinds, strict=False) if kind & ~GUESSED == CONTENT)


def judge(tape: Tape, *, asked: int, size: int) -> tuple[int, str]:
    """What became of the request on this tape, and why; `asked` tokens by a request of `size` bytes."""
    if tape.error:
        return FAILED, tape.error
    if not (tape.done or tape.finish):
        return (TRUNCATED, "ended without [DONE]") if tape.times else (FAILED, "ended before the first token")
    if reason := miscount(tape, asked=asked, size=size):
        return FAILED, reason
    if not tape.times and tape.completion_tokens <= 0:
        return EMPTY, "no token came"
    return COMPLETED, ""


def miscount(tape: Tape, *, asked: int, size: int) -> str:
    """Why the server's counts cannot be those of this reply; "" when they can.

    A reply has no more tokens than were asked for, or, from a server that does not obey, than its text has bytes; a
    prompt no more than the request and a chat template have.
    """
    output, prompt, events = tape.completion_tokens, tape.prompt_tokens, len(tape.times)
    if not output and events:
        return f"usage counts no tokens in {events:,} events"
    least = min(tape.sizes, default=0)
    text = sum(tape.sizes) - least * events + events  # at least a byte each
    if output > max(asked, text):
        return f"usage counts {output:,} tokens in {events:,} events; {asked:,} were asked for"
    if prompt > size + TEMPLATE:
        return f"usage counts {prompt:,} tokens in a prompt of {size:,} bytes"
    return ""
