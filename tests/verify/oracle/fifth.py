"""A fifth family of broken servers, from bug reports and gateways; written before reading how the checks work.

The tables say what is broken; `bend_fifth` says how. Those in `SOME` are broken in one request of three.
"""

from . import bend_fifth as bent
from .bend import calls, pieces, says
from .bend_more import call_deltas, everywhere, request, turns
from .faults import Fault

TOOLS: dict[str, Fault] = {
    "union-arguments-as-text": Fault(reply=bent.any_of_as_text),  # sglang#36626
    "no-parameters-crash": Fault(
        gate=bent.refusing(lambda body: any("parameters" not in each for each in bent.functions(body)), 500, "KeyError")
    ),
    "no-description-crash": Fault(
        gate=bent.refusing(
            lambda body: any("description" not in each for each in bent.functions(body)), 500, "UndefinedError"
        )
    ),
    "strict-tools-refused": Fault(
        gate=bent.refusing(
            lambda body: any("strict" in each for each in bent.functions(body)), 400, "strict: not permitted"
        )
    ),
    "long-arguments-cut": Fault(reply=calls(bent.values(bent.cut))),
    "newlines-in-arguments-escaped": Fault(reply=calls(bent.values(bent.backslash_n))),
    "calls-all-index-zero": Fault(stream=call_deltas(bent.all_index_zero)),  # ollama#7881
    "form-silences-tools": Fault(reply=bent.form_silences_tools),
    "keys-in-camel-case": Fault(reply=calls(bent.pairs(bent.camel))),
    "decimals-lost": Fault(reply=calls(bent.values(bent.rounded))),
    "falsy-arguments-dropped": Fault(reply=calls(bent.pairs(bent.not_falsy))),
    "no-arguments-as-empty-text": Fault(reply=calls(bent.empty_text)),
    "call-made-twice": Fault(reply=bent.twice),
    "tools-not-forwarded": Fault(request=request(bent.no_tools)),
}

TURNS: dict[str, Fault] = {
    "words-beside-calls-lost": Fault(request=turns(bent.words_beside_calls_lost)),
    "history-beyond-twenty-lost": Fault(request=turns(bent.last_twenty)),
    "long-system-cut": Fault(request=turns(bent.long_system_cut)),
    "special-tokens-in-prompt-lost": Fault(request=turns(bent.in_texts(bent.no_special_tokens))),
    "braces-in-prompt-lost": Fault(request=turns(bent.in_texts(bent.no_braces))),
    "cache-by-last-turn": Fault(reply=bent.Answers().by_last_turn),
    "backend-of-short-context": Fault(
        gate=bent.refusing(
            lambda body: bent.chat.prompt_tokens(body) > 2000, 400, "maximum context length is 2000 tokens"
        )
    ),
}

TEXTS: dict[str, Fault] = {
    "tabs-become-blanks": Fault(reply=everywhere(lambda text: text.replace("\t", "    ").replace("\\t", "    "))),
    "fences-stripped": Fault(reply=says(bent.no_fences)),
    "whole-pages-garbled": Fault(among=bent.whole_pages_garbled),
    "upstream-error-as-answer": Fault(reply=bent.upstream_error),
}

WIRE: dict[str, Fault] = {
    "stream-restarts": Fault(stream=pieces(bent.restarts)),
    "keep-alive-blanks": Fault(stream=pieces(bent.keep_alive_blanks)),
    "long-streams-closed": Fault(stream=bent.long_streams_closed),
    "stream-of-snapshots": Fault(stream=pieces(bent.snapshots)),
}

SETTINGS: dict[str, Fault] = {
    "thinks-anyway-with-tools": Fault(reply=bent.thinks_with_tools),
    "stop-list-first-only": Fault(request=request(bent.first_stop)),
    "stop-in-thoughts": Fault(reply=bent.stop_in_thoughts),
    "top-p-one-refused": Fault(
        gate=bent.refusing(lambda body: body.get("top_p") == 1, 422, "`top_p` must be > 0.0 and < 1.0")
    ),
    "nulls-refused": Fault(
        gate=bent.refusing(lambda body: None in body.values(), 422, "Input should be a valid value, not null")
    ),
}

ANTHROPIC: dict[str, Fault] = {
    "anthropic-input-streams-empty": Fault(message_events=bent.no_input),  # litellm#25321
    "anthropic-start-counts-nothing": Fault(message_events=bent.start_counts_nothing),  # litellm#24176
    "anthropic-cache-control-refused": Fault(message_gate=bent.cache_control),
    "anthropic-text-beside-result-lost": Fault(message_request=bent.turns_of(bent.text_beside_result_lost)),
    "anthropic-second-result-lost": Fault(message_request=bent.turns_of(bent.second_result_lost)),
    "anthropic-stop-sequences-ignored": Fault(message_request=bent.no_stop_sequences),
}

FIFTH: dict[str, Fault] = TOOLS | TURNS | TEXTS | WIRE | SETTINGS | ANTHROPIC
# Pools of backends, retries and the like: one request in three.
SOME = (
    "call-made-twice",
    "tools-not-forwarded",
    "backend-of-short-context",
    "upstream-error-as-answer",
    "stream-restarts",
    "keep-alive-blanks",
    "anthropic-input-streams-empty",
)
