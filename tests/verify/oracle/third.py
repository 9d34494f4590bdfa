"""A third family of broken servers, each from a public bug report; written before reading how the checks work.

The tables say what is broken; `bend_third` says how. `vllm#24509` stands for issue or pull request 24509 of vLLM.
"""

from . import bend_state as state
from . import bend_third as bent
from . import bend_wire as wire
from .bend import calls, is_json, is_schema, pieces, says
from .bend_more import arguments, call_deltas, deltas, each, everywhere, message, request, turns, whole
from .faults import Fault

TOOLS: dict[str, Fault] = {
    "required-stream-twice": Fault(stream=bent.required_twice),  # vllm#24509
    "call-id-in-each-piece": Fault(stream=bent.new_call_ids()),
    "name-in-each-piece": Fault(stream=pieces(bent.name_in_each_piece)),
    "stream-stop-with-calls": Fault(stream=each(bent.stop_for_calls)),  # litellm#37792
    "parallel-false-ignored": Fault(request=request(lambda body: body.pop("parallel_tool_calls", None))),  # vllm#39584
    "call-in-reasoning": Fault(reply=bent.call_in_reasoning),  # vllm#33646
    "section-token-leaks": Fault(reply=bent.section_token),  # Kimi-K2#26
    "nested-arguments-as-text": Fault(reply=calls(bent.nested_as_text)),
    "arguments-in-python": Fault(reply=calls(bent.python_arguments)),
    "non-ascii-arguments-lost": Fault(stream=call_deltas(bent.lossy_arguments)),
    "long-results-cut": Fault(request=turns(bent.results_cut)),
    "results-swapped": Fault(request=turns(bent.results_swapped)),
    "result-parts-lost": Fault(request=turns(bent.result_parts_lost)),  # vllm#39614
    "named-calls-another": Fault(reply=bent.another_tool),
    "null-content-crashes": Fault(gate=bent.null_content),  # mlx-vlm#1785
    "second-round-as-text": Fault(reply=bent.second_round_as_text),  # llxprt-code#713
}

THOUGHTS: dict[str, Fault] = {
    "thoughts-after-result-in-content": Fault(reply=bent.thoughts_after_result),
    "end-tag-leaks": Fault(stream=pieces(bent.end_tag)),  # vllm#39697
    "thoughts-not-streamed": Fault(stream=deltas(lambda delta: delta.pop("reasoning", None))),
    "answer-in-reasoning-when-off": Fault(reply=bent.answer_in_reasoning_when_off),  # sglang#32677
    "thoughts-of-another": Fault(reply=bent.Thoughts().of_another),  # sglang#34259
}

COUNTS: dict[str, Fault] = {
    "stream-prompt-zero": Fault(stream=each(bent.no_prompt_tokens)),
    "thoughts-not-counted": Fault(whole=bent.thoughts_uncounted, stream=bent.stream_uncounted),
    "cached-over-prompt": Fault(whole=whole(bent.cached_over_prompt)),
    "stream-counts-double": Fault(stream=each(bent.double_count)),  # vllm#8625
}

FORMS: dict[str, Fault] = {
    "nested-schema-ignored": Fault(request=request(bent.top_level_only)),
    "enum-of-numbers-empty": Fault(reply=bent.empty_number_enum),  # imp#1564
    "forbidden-key": Fault(reply=says(bent.renamed_key, is_schema)),  # mlx-serve#172
    "blanks-to-the-limit": Fault(reply=says(lambda text: text[:-1] + "\n" * 4000, is_json)),
    "schema-in-whole-only": Fault(request=request(bent.no_form_in_streams)),
    "arrays-of-one": Fault(reply=says(bent.arrays_of_one, is_json)),
}

STOPS: dict[str, Fault] = {
    "stop-string-included": Fault(among=wire.stop_included),  # vllm#57052
    "stop-begins-to-show": Fault(stream=wire.stop_begins),  # vllm#3574
    "tail-lost-with-stop": Fault(stream=wire.tail_lost_with_stop),  # llama.cpp#9867
    "stop-of-many-tokens-ignored": Fault(request=request(wire.single_word_stops)),  # llama.cpp#11538
    "piece-twice-with-stop": Fault(stream=wire.piece_twice_with_stop),  # llama.cpp#10914
    "limit-by-one": Fault(request=request(wire.one_more)),
    "limit-of-sixteen": Fault(request=request(wire.sixteen_by_default)),
    "length-as-stop": Fault(whole=whole(wire.never_length), stream=each(wire.never_length)),
    "claims-four-times": Fault(limit=24000),
}

CHANCES: dict[str, Fault] = {
    "logprobs-in-byte-letters": Fault(whole=whole(wire.byte_letters), stream=each(wire.byte_letters)),  # vllm#19177
    "logprobs-positive": Fault(whole=whole(wire.positive_logprobs), stream=each(wire.positive_logprobs)),
    "logprobs-too-few": Fault(whole=whole(wire.fewer_logprobs)),
}

TEXTS: dict[str, Fault] = {
    "wide-letters-lost-in-stream": Fault(stream=deltas(bent.lossy_content)),  # ferrox#124
    "blanks-collapse": Fault(reply=everywhere(wire.collapsed)),
    "blanks-before-marks-lost": Fault(reply=says(wire.cleaned_up)),
    "html-escaped": Fault(reply=everywhere(wire.html_escaped)),
    "token-lost-at-512": Fault(among=wire.token_lost),
    "repeats-from-1000": Fault(among=wire.repeats),
}

WIRE: dict[str, Fault] = {
    "id-in-each-chunk": Fault(stream=wire.new_ids()),  # litellm#37792
    "error-in-stream": Fault(stream=pieces(wire.error_in_stream)),  # exo#2281
    "counts-after-done": Fault(stream=pieces(wire.counts_after_done, done=False)),
    "never-finishes": Fault(stream=each(wire.no_finish)),
    "content-as-list": Fault(whole=message(wire.content_as_list)),
    "chunks-called-completions": Fault(stream=each(lambda chunk: chunk.update(object="chat.completion"))),
}

STATE: dict[str, Fault] = {
    "first-token-lost-on-hit": Fault(among=state.Cache().first_token_lost),  # sglang#29633
    "bangs-on-hit": Fault(among=state.Cache().bangs),  # omlx#2255
    "cache-without-the-end": Fault(reply=state.Cache().without_the_end),
    "cancelled-words-return": Fault(stream=state.Cancelled().stream),
    "stalls-midway": Fault(stream=state.Stalls().stream),
    "crowd-cuts": Fault(among=state.Crowd().cuts),
    "window": Fault(request=turns(state.window)),
}

ANTHROPIC: dict[str, Fault] = {
    "anthropic-end-turn-with-tools": Fault(message_events=state.end_turn),  # litellm#34692, bifrost#3638
    "anthropic-thoughts-as-text": Fault(message=state.thoughts_as_text),
    "anthropic-no-output-tokens": Fault(message_events=state.no_output_tokens),
    "anthropic-system-blocks-lost": Fault(message_request=state.system_blocks_lost),
    "anthropic-result-blocks-lost": Fault(message_request=state.result_blocks_lost),  # vllm#52489
    "anthropic-json-twice": Fault(message_events=state.json_twice),
}

# Written later, with the checks known: no part of the count of what was caught unseen.
KNOWN: dict[str, Fault] = {
    "strings-made-numbers": Fault(
        reply=arguments(lambda text: text.replace('"007"', "7").replace('"1e5"', "100000.0"))
    ),
    "large-numbers-rounded": Fault(reply=arguments(lambda text: text.replace("9007199254740993", "9007199254740992"))),
    "call-in-text-too": Fault(reply=bent.call_in_text_too),
    "two-choices": Fault(whole=whole(lambda body: body["choices"].append(body["choices"][0]))),
    "tools-beyond-eight-lost": Fault(request=request(bent.eight_tools)),
    "thoughts-back-refused": Fault(gate=bent.no_thoughts_back),
    "escapes-read-twice": Fault(reply=says(lambda text: text.replace("\\n", "\n").replace("\\t", "\t"))),
    "options-needed": Fault(gate=bent.options_needed),
}

THIRD: dict[str, Fault] = TOOLS | THOUGHTS | COUNTS | FORMS | STOPS | CHANCES | TEXTS | WIRE | STATE | ANTHROPIC
