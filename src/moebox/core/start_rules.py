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

from moebox.core.model import Model
from moebox.core.support_matrix import Setup
from moebox.core.versions import canonical_version, in_versions, version_numbers
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
    version = canonical_version(version)
    if not re.match(r"\d+\.\d", version) or not releases or re.split(r"\+|\.post", version)[0] in releases:
        return ""
    if (build := re.match(r"(\d+)\.(\d+)\.\d+\S*dev", version)) and in_versions(version, f"<{releases[0]}"):
        return f"{build[1]}.{int(build[2]) + 1}.0"
    newer = [each for each in releases if in_versions(version, f"<{each}") or re.match(rf"{each}(?<=\.0)rc", version)]
    return newer[0] if 0 < len(newer) < len(releases) else ""


def setup_rules(setup: Setup, *, or_oldest: bool = False) -> "SetupRules | None":
    """The rules that decide on a setup; None for a fork, an unknown model or a release that was not read."""
    rules = None if setup.fork else release_rules(setup.engine, setup.version, or_oldest=or_oldest)
    return SetupRules(rules, setup, setup.model) if rules and setup.model else None


def default_attention(setup: Setup) -> str:
    """The attention backend that the engine chooses by itself, or "" if that is not known."""
    rules = setup_rules(setup)
    return rules.attention() if rules else ""


def default_experts(setup: Setup) -> str:
    """The engine's own choice of kernels for the experts, or "" if that is not known."""
    rules = setup_rules(setup)
    return rules.experts() if rules else ""


def start_refusals(setup: Setup) -> list[StartRefusal]:
    """Why the engine's own checks refuse a setup.

    Kernels are added and rarely taken away: what the oldest release read has no kernel for, those before it lack too.
    """
    rules = setup_rules(setup, or_oldest=True)
    found = [*rules.refusals()] if rules else []
    for part, value in {"{dev}": setup.gpu_title or setup.gpu, "{cc}": setup.gpu, "{kv}": setup.kv}.items():
        found = [replace(refusal, text=refusal.text.replace(part, value)) for refusal in found]
    return found


def accepted_kernels(setup: Setup) -> str:
    """The kernels that the engine's own checks choose for a setup that they accept; "" if that is not known."""
    rules = setup_rules(setup)
    if rules is None or not setup.gpu or rules.model.architecture not in rules.release.names("architecture"):
        return ""
    with_experts = "layer" in rules.release.tables and rules.model.moe is not None
    kernels = [rules.attention(), *([rules.experts()] if with_experts else [])]
    return f"{' and '.join(kernels)}, as read in {rules.release.release}" if all(kernels) else ""


class SetupRules:
    """What the rules of a release decide on a setup."""

    def __init__(self, release: ReleaseRules, setup: Setup, model: Model) -> None:
        self.release, self.setup, self.model, self.flags = release, setup, model, setup.recipe.flags
        kv = setup.recipe.kv or "auto"
        if kv == "auto" and model.architecture.startswith("DeepseekV4"):
            kv = "fp8"  # what the model's own configuration makes of "auto"
        self.kv = str(release.tables.get("cache_names", {}).get(kv, kv))  # by the engine's name

    def attention(self) -> str:
        """The attention backend that the engine chooses by itself, or "" if that is not known."""
        if "layer" in self.release.tables:
            row = self._layer_attention(self.kv)
            return str(row["order"][0]) if row and "order" in row else ""
        return str((self._profile_default() or {}).get("attention", ""))

    def experts(self) -> str:
        """The engine's own choice of kernels for the experts, or "" if that is not known."""
        row = self.release.first("moe", gpus=self.setup.gpu, quantizations=self._expert_format())
        return str(row["order"][0]) if row and row.get("order") else ""

    def refusals(self) -> Iterator[StartRefusal]:
        if in_versions(self.setup.version, f">={self.release.release}"):
            yield from (*self._architecture(), *self._parsers())
        if self.setup.gpu:
            yield from (*self._layer_refusals(), *self._expert_refusals(), *self._profile_refusals())
            yield from self._format_refusals()

    def _architecture(self) -> Iterator[StartRefusal]:
        """An architecture that a later release has, or an earlier one had."""
        name, release = self.model.architecture, self.release
        rows = [row for row in release.tables.get("architecture", ()) if name in row["names"]]
        if rows and name not in release.names("architecture"):
            versions = rows[-1]["versions"].replace(">=", "").replace("==", "").split(",")[0]
            text = f"{self.setup.engine} {release.release} has no {name}: {versions} is the first release that does"
            yield release.refusal(text)

    def _parsers(self) -> Iterator[StartRefusal]:
        """Parsers that the release does not have; engines refuse such a name at the start."""
        for kind in ("tool_parser", "reasoning_parser"):
            name, known = getattr(self.setup.recipe, kind), self.release.names(kind)
            if name and known and name not in known:
                text = f"{self.setup.engine} {self.release.release} has no {kind.replace('_', ' ')} {name}"
                yield self.release.refusal(text, self.release.first(kind))

    def _layer_attention(self, cache: str) -> RuleRow | None:
        """The row of the model's attention layer with a cache type."""
        layer, stack = self.release.first("layer", architectures=self.model.architecture), self.model.stack
        name = layer["name"] if layer else "mla" if self.setup.layer_kinds == {"mla"} else ""
        heads = {each.gqa.head_dim for each in stack if each.gqa}
        if not name and len(heads) == 1 and not any(each.kind.indexer for each in stack):
            name = f"gqa-{heads.pop()}"  # what the checks of plain attention ask for
        return self.release.first("attention", gpus=self.setup.gpu, layers=name, kv=cache) if name else None

    def _layer_refusals(self) -> Iterator[StartRefusal]:
        gpu, release, row = self.setup.gpu, self.release, self._layer_attention(self.kv)
        named, cache = str(self.flags.get("attention-backend", "")).upper(), f"{self.kv} cache on {gpu}"
        if row and "refused" in row:
            others = {"bf16": "bfloat16", "fp8": "fp8"}
            accepted = [kv for kv, name in others.items() if "order" in (self._layer_attention(name) or {})]
            if "bf16" not in accepted and "order" in (self._layer_attention("auto") or {}):
                accepted.insert(0, "auto")  # before 0.15 no backend takes bfloat16 by its name
            remedy = " or ".join(f'kv = "{kv}"' for kv in accepted)
            reason = row["refused"].split(". ")[0]
            yield release.refusal(f"no attention backend takes this model with {cache}: {reason}", row, remedy)
        elif row and named and named not in row["order"]:
            text = f"{named} does not take this model with {cache}; these do: {', '.join(row['order'])}"
            yield release.refusal(text, row)
        elif row:
            backend = named or row["order"][0]
            declared = release.first("attention_backend", gpus=gpu, name=backend)
            if self.setup.recipe.parallel.dcp > 1 and declared and not declared.get("lse"):  # the sums that it needs
                text = f"{backend} cannot divide a request's cache over ranks (decode context parallelism)"
                yield release.refusal(text, declared, "parallel.dcp = 1")

    def _expert_refusals(self) -> Iterator[StartRefusal]:
        """No kernel for the experts, or none of the backend that the recipe names."""
        gpu, release, quant = self.setup.gpu, self.release, self._expert_format()
        named = str(self.flags.get("moe-backend", "")).upper()
        # The rules were read without variables and flags: AITER and a backend by name have kernels of their own.
        if (refused := release.first("moe_refusal", gpus=gpu, quantizations=quant)) and not named:
            if self.setup.recipe.env.get("VLLM_ROCM_USE_AITER") != "1":
                yield release.refusal(f"no kernel computes experts in {quant} on {gpu}", refused)
        elif named and (row := release.first("moe", gpus=gpu, quantizations=quant)):
            # A backend that is tried for this format on other GPUs and not on this one does not take this one.
            orders = [" ".join(each.get("order", ())) for each in (row, *release.rows("moe", quantizations=quant))]
            has = [bool(re.search(rf"\b(VLLM_)?{named}(_MXFP4\w*)?\b", order)) for order in orders]
            if orders[0] and any(has) and not has[0]:
                text = f"{named} has no kernel for experts in {quant} on {gpu}; these have: {orders[0]}"
                yield release.refusal(text, row, "without flags.moe-backend")

    def _format_refusals(self) -> Iterator[StartRefusal]:
        """A checkpoint format that starts from a newer GPU generation."""
        gpu = self.setup.gpu
        for quant in sorted(self.setup.quants & FORMAT_NAMES.keys()) if gpu.startswith("sm") else ():
            row = self.release.first("quantization", name=FORMAT_NAMES[quant])
            if row and int(gpu[2:]) < row["min_sm"]:
                least = f"{row['min_sm'] // 10}.{row['min_sm'] % 10}"
                text = f"{self.setup.engine} takes {quant} checkpoints from compute capability {least} on"
                yield self.release.refusal(text, row)

    def _expert_format(self) -> str:
        """The experts' format by the names of the tables; "" if it has none."""
        quants, checkpoint = self.setup.quants, self.setup.checkpoint
        if self.model.moe is None or checkpoint is None:
            return ""
        if "mxfp4" in quants:
            own = {"GptOssForCausalLM": "mxfp4-gpt-oss", "DeepseekV4ForCausalLM": "mxfp4-deepseek-v4"}
            return own.get(self.model.architecture, "mxfp4")
        if "fp8" in quants:
            return checkpoint.quant
        return next((name for name in ("nvfp4", "mxfp8", "int4", "bf16") if name in quants), "")

    def _profile(self) -> RuleRow | None:
        found = self.release.rows("model", architecture=self.model.architecture)
        methods = {"nvfp4": "modelopt", "int4": "compressed-tensors", "fp8": "fp8", "mxfp4": "mxfp4"}
        wanted = {methods[name] for name in self.setup.quants if name in methods}
        return next(iter([*(row for row in found if row.get("quantization") in wanted), *found]), None)

    def _profile_default(self) -> RuleRow | None:
        """The row of what the engine chooses for the model, its cache type and tensor parallelism."""
        profile, gpu, tp = self._profile(), self.setup.gpu, self.setup.recipe.parallel.tp
        if profile is None:
            return None
        every = self.release.rows("default", gpus=gpu, models=profile["name"], kv=self.kv)
        rows = [row for row in every if "drafts" not in row]
        exact = [row for row in rows if tp in row.get("tp", ())]
        return next(iter(exact or [row for row in rows if "tp" not in row or gpu.startswith("sm")]), None)

    def _profile_refusals(self) -> Iterator[StartRefusal]:
        profile, named, gpu = self._profile(), str(self.flags.get("attention-backend", "")), self.setup.gpu
        if profile and not named:
            tp = self.setup.recipe.parallel.tp
            if row := self.release.first("refusal", gpus=gpu, models=profile["name"], kv=self.kv, tp=tp):
                yield self.release.refusal(row["text"], row)
        elif profile:
            major = {"sm121": "sm120", "sm103": "sm100", "sm86": "sm80", "sm89": "sm80"}.get(gpu, gpu)
            layer = "mla" if profile["layer"].startswith("mla") else profile["layer"]
            choice = self.release.first("attention_choice", gpus=major, layers=layer, kv=self.kv, backends=named)
            if choice and "refused" in choice:
                yield self.release.refusal(f"{named}: {choice['refused']}", choice)
