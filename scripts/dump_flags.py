#!/usr/bin/env python3
"""Make a flag catalogue from an engine's own parser or help text.

    python scripts/dump_flags.py vllm --version 0.32.0                 inside a venv that has vLLM
    python scripts/dump_flags.py sglang --version 0.5.23 --source DIR  an unpacked wheel is enough: the rest is stubbed
    python scripts/dump_flags.py ktransformers --version 0.7.2 --source DIR  the same of its fork, sglang-kt
    python scripts/dump_flags.py vllm --version 0.32.0 --actions FILE  from a JSON list of argparse actions
    python scripts/dump_flags.py llama.cpp --version b11669 --text FILE  from `llama-server --help`

Prints the catalogue as JSON; it belongs in src/moebox/data/flags/ENGINE-VERSION.json. Standard library only.
"""

import argparse
import datetime
import importlib
import importlib.abc
import importlib.machinery
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

# ik_llama.cpp's help leaves the placeholder out for these, though they take a value (its common/common.cpp).
SILENT_VALUES = {"-mea", "-ctk-last", "-ctv-last", "--reasoning-budget-message", "--embd-normalize", "--embd-separator"}
SILENT_VALUES |= {
    "--embd-output-format",
    "-mla",
    "-amb",
    "-ser",
    "-grt",
    "-gap",
    "-dsatk",
    "-cuda",
    "-draft",
    "-rea",
    "--adaptive-target",
}
SILENT_VALUES |= {"--adaptive-decay", "--banned-string-file", "--banned-n", "--allowlist-unicode-rule"}
SILENT_VALUES |= {
    "--allowlist-pieces",
    "--allowlist-keyword",
    "--allowlist-keyword-delay",
    "--expiring-logit-bias-file",
}
# Spellings that its parser takes and its help does not name (same file).
SILENT_NAMES = {"-ngl": ["--n-gpu-layers"]}
SILENT_FLAGS = (
    (["-a", "--alias"], "NAME"),
    (["-wb", "--warmup-batch"], ""),
    (["-ot", "--override-tensor"], "RULES"),
    (["-rtr", "--run-time-repack"], ""),
    # printed only by builds with GPU offload, taken by all
    (["-ngl", "--gpu-layers"], "N"),
    (["-ngld", "--gpu-layers-draft"], "N"),
    (["-sm", "--split-mode"], "MODE"),
    (["-ts", "--tensor-split"], "SPLIT"),
    (["-mg", "--main-gpu"], "I"),
    (["-dev", "--device"], "NAMES"),
    (["-op", "--offload-policy"], "PAIRS"),
    (["-no-ooae", "--no-offload-only-active-experts"], ""),
)
# Packages of SGLang that add nothing to its parser: models and kernels on classes of torch and transformers.
BARE = ("sglang.srt.configs", "sglang.srt.distributed", "sglang.srt.layers", "sglang.kernels", "sgl_kernel")
TWO_VALUES = {"--control-vector-layer-range", "--lora-scaled", "--control-vector-scaled", "--spec-replace"}


def main() -> int:
    """Print one catalogue."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang", "ktransformers", "llama.cpp", "ik_llama.cpp"])
    parser.add_argument("--version", required=True)
    parser.add_argument("--source", type=Path, help="folder that holds the engine's package")
    parser.add_argument("--actions", type=Path, help="JSON list of argparse actions, dumped elsewhere")
    parser.add_argument("--text", type=Path, help="what --help printed")
    asked = parser.parse_args()
    if asked.engine in ("llama.cpp", "ik_llama.cpp"):
        flags, removed = from_help(asked.text.read_text(encoding="utf-8"), ik=asked.engine == "ik_llama.cpp")
        source = "the server's --help"
    else:
        removed, source = {}, "the argparse parser of the server"
        flags = from_actions(json.loads(asked.actions.read_text()) if asked.actions else actions(asked))
    print(render(asked.engine, asked.version, source, flags, removed))
    return 0


def render(engine: str, version: str, source: str, flags: dict, removed: dict) -> str:
    """The catalogue as JSON, one flag a line so that versions can be compared with diff."""
    head = {
        "engine": engine,
        "version": version,
        "source": f"{source}, {engine} {version}",
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "abbreviations": engine in ("vllm", "sglang", "ktransformers"),
        "removed": removed,
    }
    lines = [f"{json.dumps(name)}:{json.dumps(flags[name], separators=(',', ':'))}" for name in sorted(flags)]
    return json.dumps(head, indent=0)[:-2] + ',\n"flags":{\n' + ",\n".join(lines) + "\n}}"


def from_actions(rows: list[dict]) -> dict:
    """Catalogue rows from argparse actions (flags, nargs, choices)."""
    flags = {}
    for row in rows:
        names = [name for name in row["flags"] if name not in ("-h", "--help")]
        if not names:
            continue
        on = [name for name in names if not name.startswith("--no-") or f"--{name[5:]}" not in names]
        flags[on[0]] = entry(
            also=on[1:],
            off=[name for name in names if name not in on],
            takes=1 if row["nargs"] is None else row["nargs"],
            choices=[str(choice) for choice in row["choices"] or []],
        )
    return flags


def entry(*, also: list[str], off: list[str], takes: int | str, choices: list[str]) -> dict:
    """One flag; what is usual (one value, no alias) is left out."""
    row: dict = {}
    if also:
        row["also"] = also
    if off:
        row["off"] = off
    if takes != 1:
        row["takes"] = takes
    if choices:
        row["choices"] = choices
    return row


def actions(asked: argparse.Namespace) -> list[dict]:
    """The actions of the real parser."""
    return [
        {"flags": action.option_strings, "nargs": action.nargs, "choices": list(action.choices or [])}
        for action in real_parser(asked.engine, asked.source)._actions
    ]


def real_parser(engine: str, source: Path | None) -> argparse.ArgumentParser:
    """The engine's own parser: installed, or out of an unpacked wheel whose dependencies are stubbed."""
    if engine == "vllm":
        if source:
            sys.path.insert(0, str(source))
        parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm serve")
        return vllm_arguments().make_arg_parser(parser)
    if source:
        stub_sglang(source)
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


def vllm_arguments() -> types.ModuleType:
    """The module that builds the parser of `vllm serve`: it moved between 0.20 and 0.32."""
    try:
        return importlib.import_module("vllm.entrypoints.launchers.cli_args")
    except ModuleNotFoundError:
        return importlib.import_module("vllm.entrypoints.openai.cli_args")


def stub_sglang(source: Path) -> None:
    """Make `sglang.srt.server_args` importable from a bare source tree: absent packages become stand-ins."""
    sys.path.insert(0, str(source))
    for name in ("sglang", "sglang.srt"):
        package = types.ModuleType(name)
        package.__path__ = [str(source / name.replace(".", "/"))]
        sys.modules[name] = package
    sys.meta_path.insert(0, Stubs(BARE))
    sys.meta_path.append(Stubs(("",)))


class Meta(type):
    """Attributes of a stand-in class are mocks."""

    def __getattr__(cls, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)

    def __iter__(cls) -> Iterator[object]:
        return iter(())


class Base(metaclass=Meta):
    """Stands for any class: can be subclassed, called and named in annotations."""

    def __init__(self, *args: object, **more: object) -> None:
        pass

    def __init_subclass__(cls, **more: object) -> None:
        pass

    def __class_getitem__(cls, item: object) -> type:
        return cls


class StandIn(types.ModuleType):
    """A module whose every attribute is a mock, and a class where its name is one's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "2.9.1"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Meta(name, (Base,), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module under the given names."""

    def __init__(self, under: tuple[str, ...]) -> None:
        self.under = under

    def find_spec(self, name, path=None, target=None):
        """A spec for the stand-in, or None to let others look."""
        root = name.partition(".")[0]
        # _winapi is absent here for a reason: what Python itself misses is no engine's dependency
        real = root in sys.modules and not isinstance(sys.modules[root], StandIn)
        own = root == "sglang" or root in sys.stdlib_module_names or real
        if not name.startswith(self.under) or (self.under == ("",) and own):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """The stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module) -> None:
        """Nothing to run."""


def from_help(text: str, *, ik: bool) -> tuple[dict, dict]:
    """Flags and removed flags out of llama-server's help."""
    flags: dict = {}
    removed: dict = {}
    lines = text.splitlines()
    column = 34 if ik else 40  # where descriptions start; a longer head stands alone on its line
    for number, line in enumerate(lines):
        if not re.match(rf" {{0,{10 if ik else 0}}}-{{1,2}}[A-Za-z]", line):
            continue
        split = len(line) > column and line[column - 1] == " "
        head = (line[:column] if split else line).replace("(s)", ", --embeddings").strip()
        about = line[column:] if split else (lines[number + 1].strip() if number + 1 < len(lines) else "")
        words = re.split(r"[,\s]+", head)
        names = [word for word in words if re.fullmatch(r"-{1,2}[A-Za-z][\w.-]*", word)]
        if "argument has been removed" in about:
            note = " ".join(part.strip() for part in lines[number : number + 2])
            removed |= dict.fromkeys(names, note.partition("removed.")[2].strip())
        elif names:
            add(flags, names, re.sub(r"-{1,2}[A-Za-z][\w.-]*,?\s*", "", head).strip(), ik=ik)
            listed = allowed(lines[number + 1 : number + 6])
            if listed and names[0] in flags:
                flags[names[0]]["choices"] = listed
    for names, placeholder in SILENT_FLAGS if ik else ():
        add(flags, names, placeholder, ik=ik)
    return flags, removed


def allowed(lines: list[str]) -> list[str]:
    """Values that the description lists as the only ones, before the next flag begins."""
    text = ""
    for line in lines:
        if re.match(r"\s{0,10}-", line) or "(default" in line or "(env" in line:
            break
        text += " " + line.strip()
    found = re.search(r"allowed values: ([\w, ]+)", text)
    return [value for value in re.split(r"[,\s]+", found.group(1)) if value] if found else []


def add(flags: dict, names: list[str], placeholder: str, *, ik: bool) -> None:
    """Put one help line's flag into the catalogue; the first line that names it wins."""
    off = [name for name in names if re.match(r"--no-|-no-|-nkvo|-nocb|-nr$", name) and len(names) > 1]
    on = [name for name in names if name not in off]
    if not on or ik:
        on, off = names, []
    takes: int | str = 1 if placeholder or (ik and on[0] in SILENT_VALUES) else 0
    if TWO_VALUES & set(on) and " " in placeholder:
        takes = 2
    also = on[1:] + [name for name in SILENT_NAMES.get(on[0], []) if ik and name not in on]
    choices = re.fullmatch(r"[\[{(]([\w|,-]+)[\]})]", placeholder)
    if on[0] not in flags:
        values = re.split(r"[|,]", choices.group(1)) if choices else []
        flags[on[0]] = entry(also=also, off=off, takes=takes, choices=values)


if __name__ == "__main__":
    sys.exit(main())
