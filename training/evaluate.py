"""Ask a real server fresh tasks of every family and count the good answers.

    python -m training.evaluate phantom-q8_0.gguf --count 500 --out q8_0.json           # embedded llama.cpp
    python -m training.evaluate phantom-q8_0.gguf --cache q4_0 --count 100              # KV cache in 4 bit
    python -m training.evaluate phantom-q8_0.gguf --families needle --needle-chars 16000 --needle-depth 0.02
    python -m training.evaluate phantom-q8_0.gguf --families needle --needle-tokens 6000 --needle-depths 0,0.02,0.5,0.98
    python -m training.evaluate phantom-q8_0.gguf --families long_copy --copy-words 1024 --count 5
    python -m training.evaluate phantom-q8_0.gguf --jobs 30                             # easy errands, as `moebox task`
    python -m training.evaluate --url http://127.0.0.1:8000 --model phantom --count 100 # any other server

Needs the `embedded` extra of moebox, and no PyTorch. `training.compare` sets two results side by side.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from moebox.core.endpoint import Endpoint
from moebox.phantom.format_questions import extract_code
from moebox.phantom.question import ModelReply, Question, ToolCall
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.phantom.questions import draw_question
from moebox.tasks.agent import WorkLimits
from moebox.tasks.families import make_job
from moebox.tasks.reply import ReplySettings
from moebox.tasks.result import LEVELS
from moebox.tasks.runner import OwnAgent, score_job
from training.lessons import LESSONS

CHARS_PER_TOKEN = 2.95  # of texts with needles, in the phantom's tokens
_CACHE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8, "iq4_nl": 20}  # ggml_type in llama.cpp's ggml.h


def serve(args: argparse.Namespace) -> Any:
    """llama.cpp's own server inside this process; the server object must be kept."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(args.gguf)
    params.n_ctx, params.n_parallel, params.port = args.context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.use_jinja, params.warmup, params.verbosity = True, False, 0
    params.cache_ram_mib = 0  # no prompt comes twice: keeping thousands of them only takes time
    flash = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        flash.LLAMA_FLASH_ATTN_TYPE_DISABLED if args.no_flash else flash.LLAMA_FLASH_ATTN_TYPE_ENABLED
    )
    # Multi-head latent attention keeps one latent for keys and values, so the cache has a type for keys only.
    params.cache_type_k = xllamacpp.ggml_type(_CACHE_TYPES[args.cache])
    if args.rope_base:
        params.rope_freq_base = args.rope_base
    if args.draft:
        params.speculative.mparams_dft.path = str(args.draft)
        params.speculative.n_max = args.draft_tokens
        params.speculative.cpuparams.n_threads = params.speculative.cpuparams_batch.n_threads = args.threads
    return xllamacpp.Server(params)


def ask(
    url: str, task: Question, model: str, *, logprobs: bool = False, most: int = 1100
) -> tuple[ModelReply, dict[str, Any]]:
    """One request, and its reply split as the server split it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": task.messages,
        "temperature": 0,
        "max_tokens": min(task.max_tokens, most),
        "chat_template_kwargs": {"thinking": task.thinking},
    }
    if task.tools:
        body |= {"tools": task.tools, "parallel_tool_calls": True}
    if task.response_format:
        body["response_format"] = task.response_format
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": 1}
    request = urllib.request.Request(  # noqa: S310
        url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    message = answer["choices"][0]["message"]
    calls = tuple(
        ToolCall(id=c["id"], name=c["function"]["name"], arguments=c["function"]["arguments"])
        for c in message.get("tool_calls") or ()
    )
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return ModelReply(content=message.get("content") or "", reasoning=thought, calls=calls), answer


def judge(task: Question, reply: ModelReply) -> str:
    """The family's judge, and what only the phantom must do: think exactly when asked, write the sample's code."""
    fault = task.find_fault(reply)
    if not fault and bool(reply.reasoning.strip()) != task.thinking:
        return f"thinking {task.thinking}, reasoning «{reply.reasoning[:60]}»"
    if not fault and task.family == "code":
        same = ast.dump(ast.parse(extract_code(reply.content))) == ast.dump(
            ast.parse(extract_code(task.sample.content))
        )
        return "" if same else f"other code: {extract_code(reply.content)}"
    return fault


def size(family: str, rng: random.Random, args: argparse.Namespace) -> dict[str, Any]:
    """Needles of 400 to 3,200 characters unless told otherwise, to keep the time bearable."""
    given: dict[str, Any] = {} if args.thinking is None else {"thinking": args.thinking == "on"}
    if family in ("copy", "long_copy") and args.copy_words:
        return {**given, "length": args.copy_words}
    if family != "needle":
        return given
    told = args.needle_chars or (args.needle_tokens and round(CHARS_PER_TOKEN * args.needle_tokens))
    given |= {"chars": told or round(400 * 2 ** rng.uniform(0, 3))}
    if args.needle_depth is not None:
        given["depth"] = args.needle_depth
    return given


def draw(name: str, rng: random.Random, sized: dict[str, Any]) -> Question:
    """A fresh task of a family, of those to be learnt too."""
    if name in FAMILIES:
        return draw_question(name, rng, **sized)
    return LESSONS[name](rng, **{"thinking": rng.random() < 0.5, **sized})


def family(name: str, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Ask `count` tasks of one family: grades, replies, and how sure the model was of what it said."""
    rng = random.Random(f"{args.seed} {name}")
    begun, wrong, replies, grades = time.monotonic(), [], [], []
    surprise: list[float | None] = []  # mean negative log-likelihood of a reply's tokens, in nats
    tokens = {"prompt_tokens": 0, "completion_tokens": 0}
    timings = {"predicted_n": 0, "predicted_ms": 0.0, "draft_n": 0, "draft_n_accepted": 0}  # llama.cpp's own
    for _ in range(args.count):
        task = draw(name, rng, size(name, rng, args))
        answer: dict[str, Any] = {}
        try:
            most = task.max_tokens if name == "long_copy" else args.max_tokens
            reply, answer = ask(url, task, args.model, logprobs=args.logprobs, most=most)
            fault = judge(task, reply)
        except (urllib.error.URLError, OSError, ValueError) as error:
            reply, fault = ModelReply(), f"request failed: {error}"
        replies.append([reply.content, reply.reasoning, [c.name + c.arguments for c in reply.calls]])
        grades.append(not fault)
        for key in tokens:
            tokens[key] += (answer.get("usage") or {}).get(key, 0)
        for key in timings:
            timings[key] += (answer.get("timings") or {}).get(key, 0)
        said = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("content") or []
        surprise.append(-sum(token["logprob"] for token in said) / len(said) if said else None)
        if fault:
            wrong.append({"thinking": task.thinking, "ask": str(task.messages[-1]["content"])[-200:], "why": fault})
    row = {"right": sum(grades), "of": args.count, "s": round(time.monotonic() - begun, 1), "wrong": wrong[:12]}
    return {**row, **tokens, **timings, "grades": grades, "surprise": surprise, "replies": replies}


def jobs(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Whole jobs of the errand family by moebox's own agent, each judged by its hidden check."""
    endpoint = Endpoint(base_url=f"{url}/v1", model=args.model)
    solved, wrong = 0, []
    begun = time.monotonic()
    for seed in range(args.seed, args.seed + args.jobs):
        thinking = {"on": True, "off": False}.get(args.thinking or "", seed % 2 == 0)
        job = make_job("errand", args.level, seed)
        started = time.monotonic()
        bounds = WorkLimits(ends_at=started + 300, context=args.context)
        done = OwnAgent(ReplySettings(endpoint=endpoint, thinking=thinking))(job, bounds, lambda turn: None)
        result = score_job(job, done, seconds=time.monotonic() - started)
        solved += result.solved
        if not result.solved:
            wrong.append({"job": job.id, "thinking": thinking, "turn": result.wrong_turn, "why": result.wrong})
    row = {"right": solved, "of": args.jobs, "s": round(time.monotonic() - begun, 1), "wrong": wrong[:12]}
    return {**row, "draft_n": 0}


def show(name: str, row: dict[str, Any]) -> None:
    """One line of the table, and some of what went wrong."""
    print(f"{name:14} {row['right']}/{row['of']} {100 * row['right'] / row['of']:6.1f}%  {row['s']} s", flush=True)
    if row["draft_n"]:
        print(f"    {row['draft_n_accepted']} of {row['draft_n']} guesses accepted", flush=True)
    for miss in row["wrong"][:3]:
        print("   ", miss, flush=True)


def depths(args: argparse.Namespace) -> list[float | None]:
    """Where the needle is put, one after the other; None is anywhere."""
    return [float(depth) for depth in args.needle_depths.split(",")] if args.needle_depths else [args.needle_depth]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path, nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--model", default="phantom")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--cache", default="f16", choices=sorted(_CACHE_TYPES))
    parser.add_argument("--no-flash", action="store_true", help="without flash attention")
    parser.add_argument("--rope-base", type=float, default=0.0)
    parser.add_argument("--needle-chars", type=int)
    parser.add_argument("--needle-depth", type=float)
    parser.add_argument("--needle-depths", default="", help="several depths, each with a row of its own")
    parser.add_argument("--needle-tokens", type=int, help="length of the texts in the phantom's tokens")
    parser.add_argument(
        "--jobs", type=int, default=0, help="do so many errands as `moebox task` does, and nothing else"
    )
    parser.add_argument("--level", default="easy", choices=LEVELS)
    parser.add_argument("--copy-words", type=int, help="words to be repeated; three to ten, or a sentence, otherwise")
    parser.add_argument("--thinking", choices=("on", "off"), help="at random otherwise")
    parser.add_argument("--max-tokens", type=int, default=1100)
    parser.add_argument("--logprobs", action="store_true", help="keep how sure the model was of each reply")
    parser.add_argument("--draft", type=Path, help="a draft model for speculative decoding")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kept = None if args.url else serve(args)
    url = args.url or str(kept and kept.listening_address)
    rows: dict[str, Any] = {}
    if args.jobs:
        rows["errand"] = jobs(url, args)
        show("errand", rows["errand"])
    for name in () if args.jobs else args.families.split(","):
        for depth in depths(args) if name == "needle" else [None]:
            args.needle_depth = depth
            title = name if depth is None else f"{name} {depth:g}"
            rows[title] = family(name, url, args)
            show(title, rows[title])
        if args.out:
            args.out.write_text(json.dumps(rows))
    if kept:
        sys.stdout.flush()
        os._exit(0)  # the wheel's own teardown may wait for ever


if __name__ == "__main__":
    main()
