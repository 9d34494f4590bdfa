"""Answers from the start rules whether an engine release starts a model on a GPU generation, and with what."""

import argparse
import json
from pathlib import Path
from typing import Any

from .rows import FILES, version_key

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", choices=sorted(FILES))
    parser.add_argument("version")
    parser.add_argument("gpu", nargs="?", default="", help="sm120, gfx942; not needed for llama.cpp")
    parser.add_argument("--architecture", default="", help="name in config.json, or in the GGUF for llama.cpp")
    parser.add_argument("--layer", default="", help="kind of attention layer, if the architecture has no row")
    parser.add_argument("--quantization", default="", help="quant_method of the checkpoint")
    parser.add_argument("--experts", default="", help="scheme of the experts: int4, nvfp4, fp8-block, mxfp4, ...")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--attention-backend", default="")


def in_range(spec: str, version: str) -> bool:
    """Return whether a release is in ">=A,<=B" or "==A"."""
    wanted = version_key(version)
    if spec.startswith("=="):
        return wanted == version_key(spec[2:])
    low, high = spec.split(",")
    return version_key(low[2:]) <= wanted <= version_key(high[2:])


def pick_release(releases: list[str], version: str) -> tuple[str, str]:
    """Return the release whose rules hold for a version, and a note if it is another one."""
    if version in releases:
        return version, ""
    wanted = version_key(version)
    if not wanted:
        raise ValueError(f"{version} is not a version")
    older = [r for r in releases if version_key(r) <= wanted]
    if not older:
        raise ValueError(f"{version} is older than the oldest release read, {releases[0]}")
    if older[-1] == releases[-1]:
        return older[-1], f"{version} is not known; the newest known release, {older[-1]}, is used"
    return older[-1], f"{version} was not read; the release before it, {older[-1]}, is used"


class Rules:
    """The rules of one engine for one release."""

    def __init__(self, data: Path, engine: str, version: str) -> None:
        with (data / FILES[engine]).open("rb") as file:
            self.tables: dict[str, Any] = json.load(file)
        self.release, self.note = pick_release(self.tables["releases"], version)

    def rows(self, table: str, **wanted: Any) -> list[Row]:
        """Return the rows of a table for this release whose fields equal or contain what is wanted."""
        found = []
        for row in self.tables.get(table, []):
            fits = "versions" not in row or in_range(row["versions"], self.release)
            for field, value in wanted.items():
                have = row.get(field)
                fits = fits and (value in have if isinstance(have, list) else have in (value, None))
            if fits:
                found.append(row)
        return found

    def names(self, kind: str) -> set[str]:
        return {name for row in self.rows(kind) for name in row["names"]}

    def layer(self, architecture: str) -> str:
        return next((r["name"] for r in self.rows("layer", architectures=architecture)), "")


def run(options: argparse.Namespace, data: Path) -> int:
    """Print the answer. Return 0 if nothing refuses, 1 if something does."""
    rules = Rules(data, options.engine, options.version)
    lines = [f"version: {rules.note}"] if rules.note else []
    refused = False
    if options.architecture:
        known = options.architecture in rules.names("architecture")
        retired = options.architecture in rules.names("retired_architecture")
        state = "known" if known else "removed in this or an earlier release" if retired else "not in this release"
        lines.append(f"architecture: {options.architecture} {state}")
        refused |= not known
    if options.quantization:
        lines += quantization_lines(rules, options)
    answer = {"vllm": vllm_lines, "sglang": sglang_lines}.get(options.engine, ggml_lines)(rules, options)
    lines += answer
    print("\n".join(lines))
    return 1 if refused or any(": refused" in line for line in lines) else 0


def quantization_lines(rules: Rules, options: argparse.Namespace) -> list[str]:
    rows = [r for r in rules.tables.get("quantization", []) if r.get("name") == options.quantization]
    rows = [r for r in rows if in_range(r["versions"], rules.release)]
    if not rows:
        return [f"quantization: {options.quantization} refused, not in this release"]
    minimum = rows[0]["min_sm"]
    if options.gpu.startswith("sm") and int(options.gpu[2:]) < minimum:
        return [f"quantization: {options.quantization} refused, needs SM{minimum} or newer ({rows[0]['at']})"]
    return [f"quantization: {options.quantization} accepted, from SM{minimum} ({rows[0]['at']})"]


def vllm_lines(rules: Rules, options: argparse.Namespace) -> list[str]:
    layer = options.layer or rules.layer(options.architecture)
    lines = []
    if not layer:
        lines.append("attention: not known, the architecture has no layer row; give --layer")
    for row in rules.rows("attention", gpus=options.gpu, layers=layer, kv=options.kv)[:1] if layer else ():
        if "refused" in row:
            lines.append(f"attention: refused for {layer} with {options.kv} cache: {row['refused']} ({row['at']})")
        else:
            lines.append(f"attention: {row['order'][0]} by default, accepted {', '.join(row['order'])} ({row['at']})")
    if layer and not lines:
        lines.append(f"attention: not known for {layer} with {options.kv} cache on {options.gpu}")
    others = rules.rows("refusal", gpus=options.gpu, layers=layer, kv=options.kv) if layer else []
    lines += [f"attention backend {row['backend']}: not accepted: {row['text']} ({row['at']})" for row in others]
    for row in rules.rows("moe", gpus=options.gpu, quantizations=options.experts) if options.experts else ():
        order = row.get("order")
        lines.append(
            f"experts: {order[0]} by default, accepted {', '.join(order)} ({row['at']})"
            if order
            else "experts: refused"
        )
    return lines


def sglang_lines(rules: Rules, options: argparse.Namespace) -> list[str]:
    found = rules.rows("model", architecture=options.architecture)
    found = [row for row in found if row.get("quantization") == options.quantization] or found
    model, layer = (found[0]["name"], found[0]["layer"]) if found else ("", options.layer)
    if not layer:
        return ["start: not known, the architecture has no model row; --layer mla or gqa asks for a named backend"]
    asked = {"gpus": options.gpu, "models": model, "kv": options.kv}
    lines = []
    for table in ("refusal", "default"):
        for row in rules.rows(table, **asked, tp=options.tp, drafts="none")[:1]:
            values = ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, str) and k not in ("versions", "at"))
            title = f"start: refused with {options.kv} cache" if table == "refusal" else "defaults"
            lines.append(f"{title}: {values} ({row['at']})")
    if options.attention_backend:
        choice = {"gpus": options.gpu, "layers": layer, "kv": options.kv, "backends": options.attention_backend}
        for row in rules.rows("attention_choice", **choice)[:1]:
            result = f"becomes {row['becomes']}" if "becomes" in row else "accepted"
            result = f"refused: {row['refused']}" if "refused" in row else result
            lines.append(f"attention backend {options.attention_backend}: {result}")
    return lines or [f"start: not known for {model} with {options.kv} cache on {options.gpu}"]


def ggml_lines(rules: Rules, options: argparse.Namespace) -> list[str]:
    types = rules.names("cache_type")
    if options.kv == "auto" or options.kv in types:
        return [f"cache types: {', '.join(sorted(types))}"]
    return [f"cache type: refused, {options.kv} is not one of {', '.join(sorted(types))}"]
