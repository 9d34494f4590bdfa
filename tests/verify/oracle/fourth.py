"""A fourth family of broken servers, each from a public bug report; written before reading how the checks work.

The tables say what is broken; `bend_fourth` says how. `sglang#25073` stands for issue or pull request 25073 of SGLang.
"""

from . import bend_fourth as bent
from . import bend_turns as turn
from .bend import calls, pieces
from .bend_more import each, message, request, turns, whole
from .faults import Fault

TOOLS: dict[str, Fault] = {
    "call-index-of-tool": Fault(stream=bent.index_of_tool),  # sglang#25073
    "arguments-again-at-end": Fault(stream=pieces(bent.arguments_again)),  # vllm#51697
    "arguments-under-next-index": Fault(stream=pieces(bent.arguments_under_next)),  # sglang#6645
    "second-call-empty": Fault(stream=pieces(bent.second_call_empty)),  # sglang#37634
    "bare-call-lost": Fault(stream=pieces(bent.bare_calls_lost)),  # vllm#44326
    "arguments-stripped": Fault(reply=calls(bent.strings(str.strip))),  # sglang#20543
    "arguments-cut-at-comma": Fault(reply=calls(bent.strings(lambda text: text.split(",")[0]))),  # mlx-lm#1785
    "arguments-cut-at-quote": Fault(reply=calls(bent.strings(lambda text: text.split('"')[0]))),  # vllm#39075
    "stream-numbers-as-strings": Fault(stream=bent.stream_stringly),  # sglang#35564
    "cut-call-says-complete": Fault(stream=bent.cut_call_complete),  # vllm#53269
    "tool-calls-without-calls": Fault(whole=bent.finish_without_calls),  # vllm#53255
    "call-id-empty": Fault(whole=message(bent.empty_ids)),  # llama.cpp#12279
    "finish-tool-call": Fault(whole=whole(bent.singular_finish), stream=each(bent.singular_finish)),  # mlx-lm#782
    "long-descriptions-no-calls": Fault(reply=bent.long_descriptions),  # llamacpp-rocm#127
    "words-then-call-lost": Fault(reply=bent.words_first, stream=bent.calls_after_words_lost),  # litellm#17246
    "bad-history-500": Fault(gate=bent.bad_history),  # llama.cpp#25510
    "markup-in-arguments-lost": Fault(reply=calls(bent.strings(bent.no_markup))),  # sglang#31915
}

THOUGHTS: dict[str, Fault] = {
    "markup-in-text-lost": Fault(reply=bent.markup_lost),  # llama.cpp#27661
    "json-in-reasoning": Fault(reply=bent.json_in_reasoning),  # lmstudio#1602
    "cut-thoughts-as-answer": Fault(among=bent.cut_thoughts),  # lmdeploy#3748
    "more-thoughts-than-tokens": Fault(
        whole=whole(bent.more_thoughts), stream=each(bent.more_thoughts)
    ),  # sglang#39826
}

STOPS: dict[str, Fault] = {
    "limit-before-stop": Fault(among=bent.limit_before_stop),  # sglang#31599
    "logprobs-past-stop": Fault(whole=bent.logprobs_past_stop),  # vllm#47616
    "stream-counts-words": Fault(stream=each(bent.counts_words)),
}

CHANCES: dict[str, Fault] = {
    "logprobs-of-broken-letters": Fault(
        whole=whole(bent.broken_letters), stream=each(bent.broken_letters)
    ),  # ollama#13497
    "logprobs-not-streamed": Fault(stream=each(bent.no_logprobs)),  # llama-cpp-python#197
    "logprobs-break-streams": Fault(stream=bent.logprobs_break),  # litellm#3253
    "logprobs-in-old-form": Fault(whole=whole(bent.old_logprobs)),  # vllm#2918
    "top-logprobs-empty": Fault(whole=whole(bent.no_top)),
}

FORMS: dict[str, Fault] = {
    "array-lengths-ignored": Fault(request=request(bent.schema_without("minItems", "maxItems"))),  # xgrammar#160
    "string-lengths-ignored": Fault(request=request(bent.schema_without("minLength", "maxLength"))),  # vllm#45592
    "patterns-ignored": Fault(request=request(bent.schema_without("pattern"))),
    "ranges-ignored": Fault(request=request(bent.schema_without("minimum", "maximum"))),
    "additional-allowed": Fault(request=request(bent.schema_without("additionalProperties"))),  # xgrammar#104
}

WIRE: dict[str, Fault] = {
    "stream-as-json-media": Fault(media="application/json"),
    "stream-held-back": Fault(stream=bent.held_back),  # litellm#26102
    "finish-in-each-chunk": Fault(stream=each(bent.finish_in_each)),  # litellm#376
    "choice-index-one": Fault(whole=whole(bent.index_one), stream=each(bent.index_one)),  # litellm#376
    "choice-twice-in-chunk": Fault(stream=each(bent.choice_twice)),  # dynamo#15054
    "last-letter-lost": Fault(stream=pieces(bent.last_letter)),  # tensai#110
    "letters-lost-at-4096": Fault(reply=bent.boundary_letters),  # openhuman#5718
}

TURNS: dict[str, Fault] = {
    "late-system-dropped": Fault(request=turns(turn.late_system)),  # vllm#53393
    "two-user-turns-refused": Fault(gate=turn.must_alternate),  # vllm#38738
    "developer-role-crashes": Fault(gate=turn.no_developer),
    "assistant-parts-crash": Fault(gate=turn.no_assistant_parts),
    "empty-turns-break": Fault(gate=turn.no_empty_turn),
}

STATE: dict[str, Fault] = {
    "crowd-changes-a-word": Fault(among=turn.Crowd().changes),  # vllm#53257
    "cancel-ends-neighbours": Fault(stream=turn.Cancels().stream),
}

ANTHROPIC: dict[str, Fault] = {
    "anthropic-thoughts-streamed-only": Fault(message=turn.no_thinking),  # AgnesAI-Models#117
    "anthropic-no-signature": Fault(message=turn.unsigned, message_events=turn.unsigned_events),  # sglang#39752
    "anthropic-stop-sequence-unsaid": Fault(message=turn.stop_unsaid, message_events=turn.stop_unsaid_events),
    "anthropic-no-input-tokens": Fault(message=turn.no_input_tokens),
    "anthropic-no-event-names": Fault(event_names=False),
    "anthropic-first-word-twice": Fault(message_events=turn.first_word_twice),
    "anthropic-limit-ignored": Fault(message_request=turn.no_limit),
    "anthropic-tool-choice-ignored": Fault(message_request=turn.no_tool_choice),
}

FOURTH: dict[str, Fault] = TOOLS | THOUGHTS | STOPS | CHANCES | FORMS | WIRE | TURNS | STATE | ANTHROPIC
