"""Start rules: what an engine's own release accepts, chooses by itself or refuses, read from its sources.

scripts/support_rules follows the support checks of each release and writes data/start_rules/ENGINE.json, with version
ranges and file:line; scripts/support_rules/FORMAT.md explains the tables. A release that was not read has no rules.
"""

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from moebox.core.support_matrix import Setup, in_versions, version_numbers
from moebox.data import FOLDER

RuleRow = dict[str, Any]
# Formats of checkpoints by the engines' names, if a release has a minimum for them that a supported GPU may not reach.
FORMAT_NAMES = {"nvfp4": "modelopt_fp4", "mxfp4": "mxfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefusal:
    """A refusal by the engine's own checks."""

    text: str
    at: str  # file:line
    release: str
    remedy: str = ""


class ReleaseRules:
    """The tables of one engine for one release."""

    def __init__(self, tables: RuleRow, release: str) -> None:
        self.tables, self.release = tables, release

    @functools.cache  # noqa: B019  rules of a release are kept for the life of the process
    def rows(self, table: str, **wanted: Any) -> tuple[RuleRow, ...]:
        """Rows of this release whose fields equal or contain what is wanted; a missing field is any."""
        found = []
        for row in self.rows(table) if wanted else self.tables.get(table, ()):
            have = ((row.get(key), value) for key, value in wanted.items())
            equal = all(value in field if isinstance(field, list) else field in (None, value) for field, value in have)
            if equal and (wanted or in_versions(self.release, row.get("versions", ""))):
                found.append(row)
        return tuple(found)

    def first(self, table: str, **wanted: Any) -> RuleRow | None:
        """The first such row."""
        return next(iter(self.rows(table, **wanted)), None)

    @functools.cache  # noqa: B019  rules of a release are kept for the life of the process
    def names(self, kind: str) -> frozenset[str]:
        """Names that a release has of a kind: architectures, parsers, cache types."""
        return frozenset(name for row in self.rows(kind) for name in row["names"])

    def refusal(self, text: str, row: RuleRow | None = None, remedy: str = "") -> StartRefusal:
        return StartRefusal(text=text, at=row.get("at", "") if row else "", release=self.release, remedy=remedy)


@functools.cache
def _tables(engine: str) -> RuleRow:
    """The tables of an engine's releases; empty if none was read."""
    file = FOLDER / "start_rules" / f"{engine.replace('.', '_')}.json"
    found: RuleRow = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


@functools.cache
def release_rules(engine: str, version: str, *, or_oldest: bool = False) -> ReleaseRules | None:
    """The rules of the newest release read that is not newer than a version; None, or the oldest, if there is none."""
    tables = _tables(engine) if version_numbers(version) else {}
    releases = tables.get("releases", [])
    older = [release for release in releases if in_versions(version, f">={release}")] or releases[: int(or_oldest)]
    return ReleaseRules(tables, older[-1]) if older else None


def setup_rules(setup: Setup, *, or_oldest: bool = False) -> ReleaseRules | None:
    """The rules that decide on a setup; None for a fork, an unknown model or a release that was not read."""
    unknown = setup.fork or setup.model is None
    return None if unknown else release_rules(setup.engine, setup.version, or_oldest=or_oldest)


@functools.cache
def engine_architectures(engine: str) -> frozenset[str]:
    """The architectures of every release that was read."""
    return frozenset(name for row in _tables(engine).get("architecture", ()) for name in row["names"])


@functools.cache
def next_release(engine: str, version: str) -> str:
    """The release that a build between two leads to; "" for a release.

    A build of the main branch (0.26.1rc1.dev9) leads to the next feature release, a candidate (0.16.0rc2) to its own.
    """
    releases: list[str] = _tables(engine).get("releases", [])
    if not re.match(r"\d+\.\d", version) or not releases or re.split(r"\+|\.post", version)[0] in releases:
        return ""
    if (build := re.match(r"(\d+)\.(\d+)\.\d+\S*dev", version)) and in_versions(version, f"<{releases[0]}"):
        return f"{build[1]}.{int(build[2]) + 1}.0"
    newer = [each for each in releases if in_versions(version, f"<{each}") or re.match(rf"{each}(?<=\.0)rc", version)]
    return newer[0] if 0 < len(newer) < len(releases) else ""


def default_attention(setup: Setup) -> str:
    """The attention backend that the engine chooses by itself, or "" if that is not known."""
    rules = setup_rules(setup)
    if rules is None:
        return ""
    if "layer" in rules.tables:
        row = _layer_attention(rules, setup, _cache_name(rules, setup))
        return str(row["order"][0]) if row and "order" in row else ""
    return str((_profile_default(rules, setup) or {}).get("attention", ""))


def default_experts(setup: Setup) -> str:
    """The engine's own choice of kernels for the experts, or "" if that is not known."""
    rules = setup_rules(setup)
    if rules is None:
        return ""
    row = rules.first("moe", gpus=setup.gpu, quantizations=_expert_format(setup))
    return str(row["order"][0]) if row and row.get("order") else ""


def start_refusals(setup: Setup) -> list[StartRefusal]:
    """Why the engine's own checks refuse a setup.

    Kernels are added and rarely taken away: what the oldest release read has no kernel for, those before it lack too.
    """
    rules = setup_rules(setup, or_oldest=True)
    if rules is None:
        return []
    found = list[StartRefusal]()
    if in_versions(setup.version, f">={rules.release}"):
        found += [*_architecture(rules, setup), *_parsers(rules, setup)]
    if setup.gpu:
        found += [*_layer_refusals(rules, setup), *_expert_refusals(rules, setup), *_profile_refusals(rules, setup)]
        found += _format_refusals(rules, setup)
    for part, value in {"{dev}": setup.gpu_title or setup.gpu, "{cc}": setup.gpu, "{kv}": setup.kv}.items():
        found = [replace(refusal, text=refusal.text.replace(part, value)) for refusal in found]
    return found


def accepted_kernels(setup: Setup) -> str:
    """The kernels that the engine's own checks choose for a setup that they accept; "" if that is not known."""
    rules = setup_rules(setup)
    if rules is None or not setup.gpu:
        return ""
    assert setup.model is not None
    if setup.model.architecture not in rules.names("architecture"):
        return ""
    attention, experts = default_attention(setup), default_experts(setup)
    if "layer" not in rules.tables or setup.model.moe is None:
        return f"{attention}, as read in {rules.release}" if attention else ""
    return f"{attention} and {experts}, as read in {rules.release}" if attention and experts else ""


def _architecture(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    """An architecture that a later release has, or an earlier one had."""
    assert setup.model is not None
    name = setup.model.architecture
    if name in rules.names("architecture"):
        return
    rows = [row for row in rules.tables.get("architecture", ()) if name in row["names"]]
    if rows:
        versions = rows[-1]["versions"].replace(">=", "").replace("==", "").split(",")[0]
        yield rules.refusal(f"{setup.engine} {rules.release} has no {name}: {versions} is the first release that does")


def _parsers(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    """Parsers that the release does not have; engines refuse such a name at the start."""
    for kind in ("tool_parser", "reasoning_parser"):
        name, known = getattr(setup.recipe, kind), rules.names(kind)
        if name and known and name not in known:
            yield rules.refusal(
                f"{setup.engine} {rules.release} has no {kind.replace('_', ' ')} {name}", rules.first(kind)
            )


def _cache_name(rules: ReleaseRules, setup: Setup) -> str:
    """The recipe's cache type by the engine's name."""
    kv = setup.recipe.kv or "auto"
    if kv == "auto" and setup.model and setup.model.architecture.startswith("DeepseekV4"):
        kv = "fp8"  # what the model's own configuration makes of "auto"
    return str(rules.tables.get("cache_names", {}).get(kv, kv))


def _layer_attention(rules: ReleaseRules, setup: Setup, cache: str) -> RuleRow | None:
    """The row of the model's attention layer with a cache type."""
    assert setup.model is not None
    layer = rules.first("layer", architectures=setup.model.architecture)
    name = layer["name"] if layer else "mla" if setup.layer_kinds == {"mla"} else ""
    heads = {getattr(each.kind, "head_dim", 0) for each in setup.model.stack if type(each.kind).__name__ == "Gqa"}
    if not name and len(heads) == 1 and not any(getattr(each.kind, "indexer", None) for each in setup.model.stack):
        name = f"gqa-{heads.pop()}"  # what the checks of plain attention ask for
    return rules.first("attention", gpus=setup.gpu, layers=name, kv=cache) if name else None


def _layer_refusals(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    named = str(setup.recipe.flags.get("attention-backend", "")).upper()
    cache = f"{_cache_name(rules, setup)} cache on {setup.gpu}"
    row = _layer_attention(rules, setup, _cache_name(rules, setup))
    if row and "refused" in row:
        others = {"bf16": "bfloat16", "fp8": "fp8"}
        accepted = [kv for kv, name in others.items() if "order" in (_layer_attention(rules, setup, name) or {})]
        if "bf16" not in accepted and "order" in (_layer_attention(rules, setup, "auto") or {}):
            accepted.insert(0, "auto")  # before 0.15 no backend takes bfloat16 by its name
        remedy = " or ".join(f'kv = "{kv}"' for kv in accepted)
        reason = row["refused"].split(". ")[0]
        yield rules.refusal(f"no attention backend takes this model with {cache}: {reason}", row, remedy)
    elif row and named and named not in row["order"]:
        yield rules.refusal(f"{named} does not take this model with {cache}; these do: {', '.join(row['order'])}", row)
    elif row:
        backend = named or row["order"][0]
        declared = rules.first("attention_backend", gpus=setup.gpu, name=backend)
        if setup.recipe.parallel.dcp > 1 and declared and not declared.get("lse"):  # the sums that it needs
            text = f"{backend} cannot divide a request's cache over ranks (decode context parallelism)"
            yield rules.refusal(text, declared, "parallel.dcp = 1")


def _expert_refusals(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    """No kernel for the experts, or none of the backend that the recipe names."""
    asked = {"gpus": setup.gpu, "quantizations": _expert_format(setup)}
    named = str(setup.recipe.flags.get("moe-backend", "")).upper()
    # The rules were read without variables and flags: AITER and a backend by name have kernels of their own.
    if (refused := rules.first("moe_refusal", **asked)) and not named:
        if setup.recipe.env.get("VLLM_ROCM_USE_AITER") != "1":
            yield rules.refusal(f"no kernel computes experts in {asked['quantizations']} on {setup.gpu}", refused)
    elif named and (row := rules.first("moe", **asked)):
        # A backend that is tried for this format on other GPUs and not on this one does not take this one.
        every = rules.rows("moe", quantizations=asked["quantizations"])
        orders = [" ".join(each.get("order", ())) for each in (row, *every)]
        has = [bool(re.search(rf"\b(VLLM_)?{named}(_MXFP4\w*)?\b", order)) for order in orders]
        if orders[0] and any(has) and not has[0]:
            text = f"{named} has no kernel for experts in {asked['quantizations']} on {setup.gpu}"
            yield rules.refusal(f"{text}; these have: {orders[0]}", row, "without flags.moe-backend")


def _format_refusals(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    """A checkpoint format that starts from a newer GPU generation."""
    for quant in sorted(setup.quants & FORMAT_NAMES.keys()) if setup.gpu.startswith("sm") else ():
        row = rules.first("quantization", name=FORMAT_NAMES[quant])
        if row and int(setup.gpu[2:]) < row["min_sm"]:
            least = f"{row['min_sm'] // 10}.{row['min_sm'] % 10}"
            yield rules.refusal(f"{setup.engine} takes {quant} checkpoints from compute capability {least} on", row)


def _expert_format(setup: Setup) -> str:
    """The experts' format by the names of the tables; "" if it has none."""
    architecture = setup.model.architecture if setup.model else ""
    if setup.model is None or setup.model.moe is None or setup.checkpoint is None:
        return ""
    if "mxfp4" in setup.quants:
        own = {"GptOssForCausalLM": "mxfp4-gpt-oss", "DeepseekV4ForCausalLM": "mxfp4-deepseek-v4"}
        return own.get(architecture, "mxfp4")
    if "fp8" in setup.quants:
        return setup.checkpoint.quant
    return next((name for name in ("nvfp4", "mxfp8", "int4", "bf16") if name in setup.quants), "")


def _profile(rules: ReleaseRules, setup: Setup) -> RuleRow | None:
    assert setup.model is not None
    found = [*rules.rows("model", architecture=setup.model.architecture)]
    methods = {"nvfp4": "modelopt", "int4": "compressed-tensors", "fp8": "fp8", "mxfp4": "mxfp4"}
    wanted = {methods[name] for name in setup.quants if name in methods}
    return next(iter([*(row for row in found if row.get("quantization") in wanted), *found]), None)


def _profile_default(rules: ReleaseRules, setup: Setup) -> RuleRow | None:
    """The row of what the engine chooses for the model, its cache type and tensor parallelism."""
    profile = _profile(rules, setup)
    if profile is None:
        return None
    asked = {"gpus": setup.gpu, "models": profile["name"], "kv": _cache_name(rules, setup)}
    rows = [row for row in rules.rows("default", **asked) if "drafts" not in row]
    tp = setup.recipe.parallel.tp
    exact = [row for row in rows if tp in row.get("tp", ())]
    return next(iter(exact or [row for row in rows if "tp" not in row or setup.gpu.startswith("sm")]), None)


def _profile_refusals(rules: ReleaseRules, setup: Setup) -> Iterator[StartRefusal]:
    profile, named = _profile(rules, setup), str(setup.recipe.flags.get("attention-backend", ""))
    if profile is None:
        return
    kv = _cache_name(rules, setup)
    if not named:
        row = rules.first("refusal", gpus=setup.gpu, models=profile["name"], kv=kv, tp=setup.recipe.parallel.tp)
        if row:
            yield rules.refusal(row["text"], row)
        return
    major = {"sm121": "sm120", "sm103": "sm100", "sm86": "sm80", "sm89": "sm80"}.get(setup.gpu, setup.gpu)
    layer = "mla" if profile["layer"].startswith("mla") else profile["layer"]
    choice = rules.first("attention_choice", gpus=major, layers=layer, kv=kv, backends=named)
    if choice and "refused" in choice:
        yield rules.refusal(f"{named}: {choice['refused']}", choice)
