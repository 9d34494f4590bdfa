"""Recipes as an attacker would share them: every field of every engine, with texts that programs expand."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.core.recipe import Recipe
from tests.serve.rendered import recipes

# {run} becomes a command that leaves a file behind.
PAYLOADS = (
    "$({run})", "`{run}`", "; {run} ;", "&& {run}", "|| {run}", "| {run}", "& {run} &", "\n{run}\n", "\r\n{run}",
    "\0{run}", "'; {run}; '", '"; {run}; "', "'$({run})'", '"$({run})"', "\\$({run})", "\\\\$({run})",
    "'\"'\"'$({run})", "${{x:-$({run})}}", "$(( $({run}) ))", "a[$({run})]", "}} ; {run} ; {{", "x}}$({run})",
    "<({run})", ">({run})", "> {made}", "\\", "x\\", "x \\", "'", '"', "it's", 'say "hi"', "\\\n{run}", "#",
    "# {run}", "!{run}", "!!", "*", "?", "[a-z]", "~", "~root", "%h", "%n%i", "100%", "%%", "%(x)s", "$", "$$",
    "$HF_TOKEN", "${{HF_TOKEN}}", "$(HF_TOKEN)", "$$(HF_TOKEN)", "$MY_KEY", "$@", "- x", "-x", "--privileged",
    "--entrypoint", "-v=/:/host", "a: b", "{{a: b}}", "[x]", "&anchor", "*alias", "? x", "| x", "> x",
    '!!python/object/apply:os.system ["{run}"]', "null", "true", "no", "1e3", "0x10", "12:30:45", "2026-01-01",
    "<<", "=", "@x", "%TAG", "\u2028services: {{}}", "x\u2029- evil", "\x85kind: Pod", "\u202egnp.exe", "\ufeffx",
    "\x1b]0;x\x07", "\x7f", "\u200b", "\ud800", "😀", "ñandú", "日本", "../../etc", "/etc/shadow", "/", "a:b:c", "x=y",
    "x y", " x ", "\t", "", "x" * 3000, "\nExecStartPre=/bin/sh -c '{run}'", "x\n[Service]\nExecStartPre={run}",
    "\\x24({run})", "\\n{run}", "\\;", ";", "{{{{ 7*7 }}}}", "{{% include 'x' %}}", "${{PORT:-$({run})}}", "PORT",
    "the-draft-goes-here", "EOF", "'''", "--", "-",
)  # fmt: skip
NAMES = (
    "BASH_ENV",
    "ENV",
    "PATH",
    "LD_PRELOAD",
    "PYTHONSTARTUP",
    "IFS",
    "PS4",
    "args",
    "run",
    "PORT",
    "UID",
    "X",
    "HOME",
)
TEXTS = (
    "name", "engine_version", "model", "checkpoint", "served_name", "kv", "tool_parser", "reasoning_parser",
    "runtime.image", "runtime.preset", "runtime.models_dir", "runtime.python", "runtime.entry", "runtime.setup",
    "listen.host", "listen.key_env", "speculate.method", "speculate.draft",
)  # fmt: skip
# Fields that may hold any text that shows, so that it is rendered instead of refused.
OPEN = ("model", "served_name", "checkpoint", "runtime.python", "speculate.draft")
TABLES = ("env", "flags", "runtime.mounts", "climb.settings")
KINDS = ("native", "native", "docker", "podman")
# Flags that take a text of any form, so that the hostile one is rendered instead of refused.
FREE = {
    "vllm": "chat-template",
    "sglang": "chat-template",
    "llama.cpp": "chat-template-file",
    "ik_llama.cpp": "chat-template",
    "ktransformers": "chat-template",
}


def hostile(seed: int, canary: Path) -> Recipe:
    """One recipe with one to three hostile texts; BadInput where its types already refuse it."""
    draw = random.Random(seed)
    base = draw.choice(sorted(recipes()))
    document = codec.to_plain(recipes()[base])
    if not document["runtime"]["preset"]:
        document["runtime"]["kind"] = draw.choice(KINDS)
    for _ in range(draw.choice((1, 1, 1, 2))):
        _spoil(document, draw, canary / f"made-{seed}")
    return codec.decode(Recipe, document, where=f"recipe {seed}")


def _spoil(document: dict[str, Any], draw: random.Random, made: Path) -> None:
    text = payload(draw, made)
    kind = draw.random()
    if kind < 0.3:
        _set(document, draw.choice(OPEN), draw.choice(("x{}", "/data/{}", "{}")).format(text))
    elif kind < 0.5:
        document["flags"][FREE[document["engine"]]] = text
    elif kind < 0.6:
        document["env"]["X"] = text
    elif kind < 0.65 and document["engine"] in ("llama.cpp", "ik_llama.cpp"):
        document["hybrid"] = {"ranges": [text]}
    elif kind < 0.85:
        _set(document, draw.choice(TEXTS), _grown(draw, text))
    elif kind < 0.9:
        document["runtime"]["options"] = [*document["runtime"]["options"], *draw.sample([text, "--shm-size", "1g"], 2)]
    else:
        table = _table(document, draw.choice(TABLES))
        key = draw.choice([text, draw.choice(NAMES), "/data/models", "chat-template", "X"])
        table[key] = draw.choice([text, "/models", f"/models:{text}", "1"])


def payload(draw: random.Random, made: Path) -> str:
    """A text that leaves `made` behind where a program runs it."""
    return draw.choice(PAYLOADS).format(run=f"/usr/bin/touch {made}", made=made)


def _grown(draw: random.Random, text: str) -> str:
    """The payload alone, or around something that passes for the real thing."""
    around = ("{}", "{}", "x{}", "/data/{}", "{}x", "vllm serve {}", "pip install {}", "a/b:{}", "127.0.0.1{}")
    return draw.choice(around).format(text)


def _set(document: dict[str, Any], path: str, value: str) -> None:
    head, _, rest = path.partition(".")
    if not rest:
        document[head] = value
        return
    if document.get(head) is None:
        document[head] = {"draft": "a/draft"}
    document[head][rest] = value


def _table(document: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.split("."):
        document = document.setdefault(name, {})
    return document


def many(count: int, canary: Path, *, start: int = 0) -> Iterator[tuple[int, Recipe | Exception]]:
    """`count` of them, or what their types said."""
    from moebox.errors import BadInput

    for seed in range(start, start + count):
        try:
            yield seed, hostile(seed, canary)
        except BadInput as problem:
            yield seed, problem
