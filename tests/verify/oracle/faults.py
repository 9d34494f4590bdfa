"""One known fault per name, each with the check that is meant to find it."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moebox.phantom.question import ModelReply

from . import bend
from .bend import Body, Stream
from .chat import Made
from .neighbours import Neighbours
from .wire import Request, Response


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Where a server goes wrong; hooks that are not given do nothing."""

    check: str = ""  # "" if it is not a fault
    red: bool = True  # False: yellow is all that can be said
    gate: Callable[[Request, Body], Response | None] | None = None
    request: Callable[[Body], Body] | None = None
    reply: Callable[[ModelReply, Body], ModelReply] | None = None
    among: Callable[[Made], Any] | None = None  # may wait for its neighbours
    whole: Callable[[Body, Made], Body] | None = None
    stream: Callable[[Made], Stream] | None = None
    message_gate: Callable[[Body], Response | None] | None = None  # Anthropic's
    message_request: Callable[[Body], Body] | None = None
    message: Callable[[Body], Body] | None = None
    message_events: Callable[[list[Body]], list[Body]] | None = None
    several: Callable[[Body], Body] | None = None  # whole answers of several choices
    several_chunks: Callable[[list[Body]], list[Body]] | None = None
    response_request: Callable[[Body], Body] | None = None  # of /v1/responses
    response: Callable[[Body], Body] | None = None
    response_events: Callable[[list[Body]], list[Body]] | None = None
    no_anthropic: bool = False  # nor /v1/responses
    event_names: bool = True  # of Anthropic's events
    media: str = "text/event-stream"  # of streams
    whole_media: str = "application/json"
    body: Callable[[Body], bytes] | None = None  # how a whole answer is written
    limit: int | None = None  # tokens that it says it takes
    context: int | None = None  # tokens that it takes
    bare: bool = False  # no /health, no /tokenize
    health: int = 404  # what a bare server answers there
    listed: Callable[[Body], Body] | None = None  # /v1/models
    refusal: Callable[[int, str], Response] | None = None  # how errors are worded
    headers: tuple[tuple[str, str], ...] = ()
    body_in_pieces: bool = False  # a whole answer without a length


_held = itertools.count()


async def hold(made: Made) -> Made:
    """Answers once, then never again."""
    if next(_held):
        await asyncio.sleep(3600)
    return made


class Hold:
    """Answers a conversation once, and never again."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, made: Made) -> Made:
        if made.request["messages"] in self.seen:
            await asyncio.sleep(3600)
        self.seen.append(made.request["messages"])
        return made


FAULTS: dict[str, Fault] = {
    "correct": Fault(),
    "no-anthropic": Fault(no_anthropic=True),
    "keyed": Fault(gate=bend.keyed),
    "busy-at-times": Fault(gate=bend.counted(lambda n: bend.busy() if n % 5 == 1 else None)),
    "always-busy": Fault(check="alive", gate=bend.counted(lambda n: bend.busy())),
    "stops-answering": Fault(
        check="arithmetic", gate=bend.counted(lambda n: bend.error(500, "out of memory") if n > 8 else None)
    ),
    "stops-answering-midway": Fault(gate=bend.counted(lambda n: bend.error(500, "out of memory") if n > 12 else None)),
    "never-answers": Fault(among=hold),
    "never-answers-again": Fault(among=Hold(), stream=bend.pieces(bend.drop_usage)),
    "ignores-secrets": Fault(check="concurrency", reply=lambda reply, body: ModelReply(content="Z9")),
    "never-thinks": Fault(reply=lambda reply, body: dataclasses.replace(reply, reasoning="")),
    "exclaims": Fault(check="plain", reply=bend.says(lambda text: "!" * 200)),
    "loops": Fault(check="plain", reply=bend.says(lambda text: f"{text} " + "and so on it goes " * 40)),
    "wrong-language": Fault(check="plain", reply=bend.says(lambda text: f"{text} " + "这是一个非常好的问题" * 30)),
    "empty": Fault(check="alive", reply=lambda reply, body: ModelReply()),
    "forgets": Fault(check="plain", request=lambda body: {**body, "messages": body["messages"][-1:]}),
    "nan": Fault(check="sampling", whole=bend.nan),
    "leaks-everywhere": Fault(check="plain", reply=bend.says(lambda text: f"{text}<|im_end|>")),
    "wrong-sums": Fault(check="arithmetic", reply=bend.says(bend.wrong_sum)),
    "wrong-code": Fault(check="code", reply=bend.says(bend.wrong_code)),
    "code-hangs": Fault(check="code", reply=bend.says(bend.hangs)),
    "json-fenced": Fault(check="json", reply=bend.says(lambda text: f"```json\n{text}\n```", bend.is_json)),
    "json-cut": Fault(check="json", reply=bend.says(lambda text: text[:-1], bend.is_json)),
    "schema-ignored": Fault(check="json", reply=bend.says(bend.extra_key, bend.is_schema)),
    "drops-last-chunk": Fault(check="streaming", stream=bend.pieces(bend.without_last_words)),
    "forgets-usage": Fault(check="streaming", stream=bend.pieces(bend.drop_usage)),
    "leaks-special-tokens": Fault(
        check="streaming", stream=bend.pieces(lambda sent: bend.after_words(sent, "<|im_end|>"))
    ),
    "finishes-twice": Fault(check="streaming", stream=bend.pieces(bend.twice_finished)),
    "no-done": Fault(check="streaming", stream=bend.pieces(lambda sent: sent, done=False)),
    "closes-early": Fault(check="streaming", stream=bend.closes_early),
    "all-at-once": Fault(check="streaming", stream=bend.pieces(bend.at_once)),
    "broken-chunk": Fault(
        check="streaming", stream=bend.pieces(lambda sent: [*sent[:2], b'data: {"choi\n\n', *sent[2:]])
    ),
    "never-ends": Fault(check="streaming", stream=bend.never_ends),
    "huge-chunk": Fault(check="streaming", stream=bend.huge),
    "think-tags": Fault(check="thinking", reply=bend.tags),
    "thinks-anyway": Fault(check="thinking", red=False, reply=bend.thinks_anyway),
    "answer-in-reasoning": Fault(check="thinking", reply=bend.into_reasoning),
    "no-schema-after-thinking": Fault(check="thinking", reply=bend.no_schema_after_thought),
    "arguments-cut": Fault(check="tools", reply=bend.calls(bend.half)),
    "streamed-arguments-lost": Fault(check="tools", stream=bend.pieces(bend.merged_calls)),
    "arguments-of-wrong-type": Fault(check="tools", reply=bend.calls(bend.wrong_type)),
    "same-ids": Fault(check="tools", reply=bend.calls(bend.other_ids)),
    "calls-as-text": Fault(check="tools", reply=bend.as_text),
    "required-ignored": Fault(check="tools", reply=bend.never_calls(lambda choice: choice == "required")),
    "named-ignored": Fault(check="tools", reply=bend.never_calls(lambda choice: isinstance(choice, dict))),
    "none-ignored": Fault(check="tools", request=bend.calls_anyway),
    "none-as-text": Fault(check="tools", reply=bend.under_none),
    "one-call-only": Fault(check="tools", reply=bend.one_call),
    "results-ignored": Fault(check="tools", reply=bend.ignores_results),
    "crashes-on-bad-history": Fault(check="tools", gate=bend.crash_on_bad_history),
    "context-cut": Fault(check="long-context", request=bend.words_cut),
    "neighbours-answer": Fault(check="concurrency", among=Neighbours().swapped),
    "mixes-streams": Fault(check="concurrency", stream=Neighbours().mixed),
    "mixes-words": Fault(check="concurrency", stream=Neighbours().words_mixed),
    "loses-some": Fault(check="concurrency", among=Neighbours().lost),
    "stop-ignored": Fault(check="limits", request=bend.no_stop),
    "limit-ignored": Fault(check="limits", request=bend.never_length),
    "too-long-crashes": Fault(check="limits", gate=bend.too_long_crash),
    "too-long-cut": Fault(check="limits", request=bend.too_long_cut),
    "blocks-stay-open": Fault(check="anthropic", message_events=bend.no_block_stop),
    "wrong-stop-reason": Fault(check="anthropic", message=bend.ends_wrongly),
    "takes-1k-no-logprobs": Fault(limit=1024, context=1024, request=lambda body: {**body, "logprobs": False}),
    "takes-20k": Fault(limit=20_000, context=20_000),
    "announces-20k-takes-18k": Fault(check="long-context", limit=20_000, context=18_000),
}
