"""Ask a real server fresh tasks of every family and count the good answers.

    python -m training.evaluate phantom-q8_0.gguf --count 500 --out q8_0.json           # embedded llama.cpp
    python -m training.evaluate phantom-q8_0.gguf --cache q4_0 --count 100              # KV cache in 4 bit
    python -m training.evaluate --url http://127.0.0.1:8000 --model phantom --count 100 # any other server

Needs the `embedded` extra of moebox, and no PyTorch.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from moebox.phantom.tasks import FAMILIES, Call, Grade, Reply, Task, code_in

_CACHE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # ggml_type in llama.cpp's ggml.h


def serve(path: Path, *, cache: str, rope_base: float, threads: int, context: int) -> tuple[Any, str]:
    """llama.cpp's own server inside this process; the server object must be kept."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.port = context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja, params.warmup, params.verbosity = True, False, 0
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type(_CACHE_TYPES[cache])
    if rope_base:
        params.rope_freq_base = rope_base
    server = xllamacpp.Server(params)
    return server, server.listening_address


def ask(url: str, task: Task, model: str) -> tuple[Reply, dict[str, Any]]:
    """One request, and its reply split as the server split it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": task.messages,
        "temperature": 0,
        "max_tokens": min(task.max_tokens, 1100),
        "chat_template_kwargs": {"thinking": task.thinking},
    }
    if task.tools:
        body |= {"tools": task.tools, "parallel_tool_calls": True}
    if task.response_format:
        body["response_format"] = task.response_format
    request = urllib.request.Request(  # noqa: S310
        url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
        answer = json.load(response)
    message = answer["choices"][0]["message"]
    calls = tuple(
        Call(id=c["id"], name=c["function"]["name"], arguments=c["function"]["arguments"])
        for c in message.get("tool_calls") or ()
    )
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return Reply(content=message.get("content") or "", reasoning=thought, calls=calls), answer


def judge(task: Task, reply: Reply) -> Grade:
    """The family's judge, and what only the phantom must do: think exactly when asked, write the sample's code."""
    grade = task.grade(reply)
    if grade.ok and bool(reply.reasoning.strip()) != task.thinking:
        return Grade(ok=False, why=f"thinking {task.thinking}, reasoning «{reply.reasoning[:60]}»")
    if grade.ok and task.family == "code":
        same = ast.dump(ast.parse(code_in(reply.content))) == ast.dump(ast.parse(code_in(task.sample.content)))
        return grade if same else Grade(ok=False, why=f"other code: {code_in(reply.content)}")
    return grade


def size(family: str, rng: random.Random, chars: int | None) -> dict[str, Any]:
    """Needles of 400 to 3,200 characters unless told otherwise, to keep the time bearable."""
    if family != "needle":
        return {}
    return {"chars": chars or round(400 * 2 ** rng.uniform(0, 3))}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path, nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--model", default="phantom")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--cache", default="f16", choices=sorted(_CACHE_TYPES))
    parser.add_argument("--rope-base", type=float, default=0.0)
    parser.add_argument("--needle-chars", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kept, url = None, args.url
    if not url:
        kept, url = serve(
            args.gguf, cache=args.cache, rope_base=args.rope_base, threads=args.threads, context=args.context
        )
    rows: dict[str, Any] = {}
    for name in args.families.split(","):
        rng = random.Random(f"{args.seed} {name}")
        begun, wrong, replies = time.monotonic(), [], []
        for _ in range(args.count):
            task = FAMILIES[name].draw(rng, **size(name, rng, args.needle_chars))
            try:
                reply, _ = ask(url, task, args.model)
                grade = judge(task, reply)
            except (urllib.error.URLError, OSError, ValueError) as error:
                reply, grade = Reply(), Grade(ok=False, why=f"request failed: {error}")
            replies.append([reply.content, reply.reasoning, [c.name + c.arguments for c in reply.calls]])
            if not grade.ok:
                wrong.append({"thinking": task.thinking, "ask": task.messages[-1]["content"][-200:], "why": grade.why})
        right = args.count - len(wrong)
        rows[name] = {"right": right, "of": args.count, "s": round(time.monotonic() - begun, 1), "wrong": wrong[:12]}
        rows[name]["replies"] = replies
        print(f"{name:14} {right}/{args.count} {100 * right / args.count:6.1f}%  {rows[name]['s']} s", flush=True)
        for miss in wrong[:3]:
            print("   ", miss, flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows))
    del kept


if __name__ == "__main__":
    main()
