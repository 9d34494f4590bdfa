"""A request that is over: what became of it, put into the samples."""

from typing import NamedTuple

from moebox.bench.lane import Got, feed
from moebox.bench.samples import COMPLETED, EMPTY, FAILED, TRUNCATED, Samples
from moebox.bench.talk import Talk
from moebox.stream import Tape
from moebox.stream.events import CONTENT, GUESSED


class Ended(NamedTuple):
    """One request's last state, its lane free for the next; `unread` is still to be looked at."""

    tape: Tape
    unread: list[Got]
    talk: Talk
    turn: int
    due: int
    sent: int
    at: int

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
            outcome, reason = judge(tape)
        if self.talk.keep and tape.completion_tokens < 0:
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


def judge(tape: Tape) -> tuple[int, str]:
    """What became of the request on this tape, and why."""
    if tape.error:
        return FAILED, tape.error
    if not (tape.done or tape.finish):
        return (TRUNCATED, "ended without [DONE]") if tape.times else (FAILED, "ended before the first token")
    if not tape.times:
        return EMPTY, "no token came"
    return COMPLETED, ""
