"""A sixth family of broken servers, written before its author read the checks: what agents' owners report.

The tables say what is broken; `bend_sixth` says how. Those in `SOME` are broken in one request of three.
"""

import dataclasses
import json

from . import bend_sixth as bent
from . import bend_sixth_time as late
from .bend import calls, pieces, says
from .bend_more import call_deltas, mojibake, request, turns
from .faults import Fault

_aborts = late.Poison(late.garbage, 3)
_refusals = late.Poison(late.nothing, 2)

STREAMS: dict[str, Fault] = {
    "retry-restarts-stream": Fault(stream=pieces(bent.retried)),
    "heartbeat-as-newline": Fault(stream=pieces(bent.heartbeat)),
    "blank-lines-lost-in-streams": Fault(stream=pieces(bent.no_blank_lines)),
    "spaces-lost-with-tools": Fault(stream=bent.streamed(bent.stripped_with_tools)),
    "mojibake-in-streamed-calls": Fault(
        stream=call_deltas(lambda item: item["function"].update(arguments=mojibake(item["function"]["arguments"])))
    ),
    "tags-eaten-in-streams": Fault(among=bent.made_of(bent.tags_eaten)),
    "last-piece-lost-at-limit": Fault(among=bent.made_of(bent.last_lost_at_limit)),
    "stop-string-half-sent": Fault(among=bent.made_of(bent.stop_begun)),
}

TOOLS: dict[str, Fault] = {
    "arguments-html-escaped": Fault(reply=calls(bent.escaped)),
    "third-call-lost": Fault(reply=lambda reply, body: dataclasses.replace(reply, calls=reply.calls[:2])),
    "digits-become-numbers": Fault(reply=bent.arguments(bent.number_of_digits)),
    "integers-as-floats": Fault(reply=bent.arguments(bent.floats)),
    "lists-of-one-unwrapped": Fault(reply=bent.arguments(bent.unwrapped)),
    "names-cut-at-underscores": Fault(reply=calls(bent.name_cut)),
    "only-sixteen-tools": Fault(request=request(lambda body: body.update(tools=(body.get("tools") or [])[:16]))),
    "no-arguments-as-nothing": Fault(reply=calls(bent.no_arguments)),
    "last-result-only": Fault(request=turns(bent.last_result_only)),
    "results-in-order": Fault(request=turns(bent.results_in_order)),
    "long-result-cut": Fault(request=turns(bent.result_cut)),
    "markup-in-third-round": Fault(reply=bent.markup_in_third_round),
}

JSON: dict[str, Fault] = {
    "inner-keys-free": Fault(reply=bent.inner_key_lost),
    "endless-space-after-json": Fault(reply=bent.endless_space),
    "raw-newline-in-json": Fault(reply=bent.raw_newline),
    "schema-or-tools": Fault(request=request(bent.schema_or_tools)),
}

THINKING: dict[str, Fault] = {
    "answer-as-thought-in-streams": Fault(reply=bent.answer_as_thought),
    "cut-thought-as-answer": Fault(among=bent.made_of(bent.thought_as_answer)),
    "thoughts-in-history-refused": Fault(gate=bent.no_thoughts_in_history),
    "thinks-beyond-limit": Fault(request=request(bent.thinks_beyond_limit)),
}

TURNS: dict[str, Fault] = {
    "system-lost-in-long-chats": Fault(
        request=turns(lambda output: [turn for turn in output if turn["role"] != "system" or len(output) < 7])
    ),
    "developer-refused": Fault(gate=bent.no_developer),
    "first-of-two-turns-lost": Fault(request=turns(bent.last_of_two)),
    "tabs-become-spaces": Fault(request=turns(bent.no_tabs)),
}

LONG: dict[str, Fault] = {
    "hole-at-seventy-percent": Fault(request=turns(bent.hole)),
    "long-answer-loops": Fault(reply=says(bent.loops)),
    "token-lost-at-blocks": Fault(reply=says(bent.block_drop)),
    "cache-by-beginning-and-length": Fault(among=late.Memory(late.prefix_and_length)),
    "repetition-penalised": Fault(reply=says(bent.penalised)),
}

TIME: dict[str, Fault] = {
    "third-in-flight-empty": Fault(among=late.Crowd().third_is_empty),
    "one-parser-for-all": Fault(stream=late.Crowd().one_parser),
    "halves-after-a-while": Fault(reply=late.Later(late.half_of_some)),
    "markup-after-a-while": Fault(reply=late.Later(late.parser_gone)),
    "garbage-after-an-abort": Fault(reply=_aborts.reply, stream=_aborts.stream),
    "nothing-after-a-refusal": Fault(reply=_refusals.reply, gate=_refusals.refused),
    "old-connections-fail": Fault(gate=late.Connections()),
    "eight-at-once-garbage": Fault(among=late.Crowd().eighth_is_garbage),
}

USAGE: dict[str, Fault] = {
    "tools-not-counted": Fault(among=bent.made_of(bent.tools_not_counted)),
    "prompt-count-drifts": Fault(among=bent.made_of(bent.drifting)),
    "too-long-as-answer": Fault(request=request(late.too_long_as_text)),
}

ANTHROPIC: dict[str, Fault] = {
    "anthropic-first-block-lost": Fault(message_request=bent.last_block_only),
    "anthropic-streams-do-not-stop": Fault(message_request=bent.no_stop_in_streams),
    "anthropic-call-ends-turn-in-streams": Fault(message_events=bent.call_ends_turn),
    "anthropic-second-input-lost": Fault(message_events=bent.second_input_lost),
    "anthropic-prompt-not-counted": Fault(message_events=bent.prompt_not_counted),
}

SAMPLING: dict[str, Fault] = {
    "streams-are-greedy": Fault(request=request(lambda body: body.get("stream") and body.update(temperature=0))),
    "alternatives-of-the-first": Fault(stream=bent.streamed(bent.first_alternatives)),
    "second-stop-ignored": Fault(
        request=request(lambda body: isinstance(body.get("stop"), list) and body.update(stop=body["stop"][:1]))
    ),
}

SIXTH: dict[str, Fault] = {
    **STREAMS,
    **TOOLS,
    **JSON,
    **THINKING,
    **TURNS,
    **LONG,
    **TIME,
    **USAGE,
    **ANTHROPIC,
    **SAMPLING,
}
# Thought of when the checks had been read, so they prove nothing about other servers: not counted.
THOUGHT_OF: dict[str, Fault] = {
    "long-streams-lose-their-head": Fault(request=request(bent.headless_in_streams)),
    "results-need-names": Fault(gate=bent.results_need_names),
    "mail-redacted-in-calls": Fault(reply=calls(bent.redacted)),
    "empty-results-crash": Fault(
        gate=bent.crashing(lambda turn: turn.get("role") == "tool" and turn.get("content") == "")
    ),
    "quotes-in-history-crash": Fault(gate=bent.crashing(lambda turn: '\\\\\\"' in json.dumps(turn.get("tool_calls")))),
    "named-users-refused": Fault(gate=bent.crashing(lambda turn: turn.get("role") == "user" and "name" in turn)),
    "nonsense-when-warm": Fault(
        reply=says(lambda text: text[::-1] + " zzz", lambda body: 0 < (body.get("temperature") or 0) < 1)
    ),
    "twelve-at-once-swapped": Fault(among=late.Crowd().twelfth_is_garbage),
    "parameters-undescribed": Fault(request=request(bent.undescribed)),
    "connections-end-after-ten": Fault(gate=late.Connections(10)),
    "anthropic-thoughts-back-refused": Fault(message_gate=bent.no_thinking_blocks),
}
SOME = ("retry-restarts-stream", "heartbeat-as-newline", "arguments-html-escaped", "token-lost-at-blocks")
