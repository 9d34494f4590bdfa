"""The support matrix: what is known of an engine version on a GPU with a model, a quantisation, a cache and a layout.

Rows come from dated reports of users, maintainers and published runs (data/support.toml, read in its compact form
data/support.json). `core.support.support_for` is the one reader; it also asks the engines' own start checks in
`core.start_rules`. This module holds the rows and decides which of them cover a setup.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from moebox import codec
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Flag, Parallel, Recipe, Runtime
from moebox.core.setting import setting_matches
from moebox.core.versions import in_versions, version_numbers
from moebox.data import FOLDER
from moebox.errors import BadInput

State = Literal["no-start", "crashes", "hangs", "wrong", "slow", "runs", "accepted", "unknown"]  # the worst first
WORST_FIRST: tuple[State, ...] = get_args(State)
STATE_TEXT: dict[State, str] = {
    "no-start": "does not start",
    "crashes": "crashes",
    "hangs": "hangs",
    "wrong": "gives wrong answers",
    "slow": "runs slowly",
    "runs": "runs",
    "accepted": "should start",  # the engine's own checks accept it; there is no report
    "unknown": "not known",
}
# Settings that concern how replies are parsed: the model's own answers are right, tool calls or reasoning may not be.
PARSING = ("tool_parser", "reasoning_parser", "tool_choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    url: str
    date: str
    quote: str = ""
    by: str = "user"


@dataclass(frozen=True, kw_only=True)
class SupportRow:
    """One row of the matrix. An empty field is no condition."""

    id: str
    engine: str
    versions: str = ""  # ">=0.25,<0.27"; builds and dates as "b9840..b10260", both ends included
    inferred: bool = False  # the report names no version: the range is what was released at its date
    gpu: tuple[str, ...] = ()  # generations (sm120, gfx942) or parts of a product name ("RTX 5090")
    architecture: tuple[str, ...] = ()
    layer_kind: tuple[str, ...] = ()  # mla, dsa, compressed, linear, sliding, gqa
    quant: tuple[str, ...] = ()  # int4, nvfp4, fp8, mxfp4, mxfp8, awq, gptq, bf16, gguf
    kv: tuple[str, ...] = ()
    layout: str = ""  # "tp=8 ep", "nodes>1"
    settings: dict[str, Flag] = field(default_factory=dict)
    state: State
    factor: float | None = None  # of the speed without the problem, for slow rows
    sometimes: bool = False  # seen in some requests or runs only: a warning that does not decide the state
    estimated: bool = False  # the factor was not measured: it is shown, and enters no forecast
    symptom: str = ""  # id of the symptom that a log then shows
    text: str
    fix: str = ""
    change: dict[str, Flag] = field(default_factory=dict)
    evidence: tuple[Evidence, ...]

    @functools.cached_property
    def date(self) -> str:
        """The date of the newest evidence."""
        return max(item.date for item in self.evidence)

    @property
    def source(self) -> str:
        """The newest evidence's address and date."""
        newest = max(self.evidence, key=lambda item: item.date)
        how = "; version inferred from the date" if self.inferred else ""
        return f"{newest.url} ({newest.date}{how})"

    @functools.cached_property
    def dimensions(self) -> frozenset[str]:
        """What the row sets conditions on; a product is narrower than its GPU generation."""
        fields = ("versions", "gpu", "architecture", "layer_kind", "quant", "kv", "layout")
        held = frozenset(name for name in fields if getattr(self, name)) | {f"settings.{key}" for key in self.settings}
        return held | {"product" for name in self.gpu if not name.startswith(("sm", "gfx"))}

    @property
    def concerns_parsing(self) -> bool:
        """Whether only the parsing of replies is affected."""
        return any(key in PARSING for key in self.settings)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What `support_for` is asked about: one recipe on one kind of GPU."""

    engine: str
    version: str  # as released or as the recipe names it
    fork: str = ""  # the image, fork or nightly build that runs instead of the release; "" for the release
    gpu: str = ""  # sm120, gfx942; "" without a GPU
    gpu_title: str = ""
    model: Model | None = None
    checkpoint: Checkpoint | None = None
    kv: str = "auto"
    recipe: Recipe
    ram: int = 0  # bytes; 0 if unknown
    driver: str = ""
    cuda: str = ""
    cpu_features: tuple[str, ...] = ()
    rendered_flags: Callable[[], Mapping[str, str]] | None = None  # the flags of the launch, as the engine gets them

    @functools.cached_property
    def layer_kinds(self) -> frozenset[str]:
        """The kinds of attention layers, by the names that rows use."""
        kinds = set()
        for layers in self.model.stack if self.model else ():
            name = type(layers.kind).__name__.lower()
            kinds.add("dsa" if name == "mla" and getattr(layers.kind, "indexer", None) else name)
            if layers.kind.window:
                kinds.add("sliding")
        return frozenset(kinds)

    @functools.cached_property
    def quants(self) -> frozenset[str]:
        """The families that the checkpoint's quantisation belongs to; empty if the checkpoint is unknown."""
        if self.checkpoint is None:
            return frozenset()
        if self.checkpoint.format == "gguf":
            return frozenset({"gguf"})
        text = f"{self.checkpoint.quant} {self.checkpoint.name}".lower()
        names = {name for name in ("nvfp4", "mxfp4", "mxfp8", "awq", "gptq", "exl3", "bf16") if name in text}
        if re.search(r"(?<!x)(?<!nv)fp8", self.checkpoint.quant.lower()):
            names.add("fp8")
        return frozenset(names | ({"int4"} if re.search(r"int4|w4a16|awq|gptq", text) else set()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A row that covers a setup; `conditions` are those that cannot be read from a recipe and a box."""

    row: SupportRow
    conditions: tuple[str, ...] = ()


@functools.cache
def support_rows() -> dict[str, tuple[SupportRow, ...]]:
    rows = json.loads((FOLDER / "support.json").read_text(encoding="utf-8"))["row"]
    found: dict[str, list[SupportRow]] = {}
    for row in codec.decode(tuple[SupportRow, ...], rows, where="support.json"):
        found.setdefault(row.engine, []).append(row)
    return {engine: tuple(rows) for engine, rows in found.items()}


def candidate_rows(setup: Setup) -> tuple[SupportRow, ...]:
    """Rows of the engine whose conditions on version, GPU, architecture and quantisation the setup meets."""
    architecture = setup.model.architecture if setup.model else ""
    return _candidate_rows(
        setup.engine, setup.version, setup.gpu, setup.gpu_title, architecture, setup.layer_kinds, setup.quants
    )


@functools.lru_cache(maxsize=256)  # a plan asks for hundreds of recipes that differ in settings alone
def _candidate_rows(
    engine: str, version: str, gpu: str, title: str, architecture: str, kinds: frozenset[str], quants: frozenset[str]
) -> tuple[SupportRow, ...]:
    return tuple(
        row
        for row in support_rows().get(engine, ())
        if in_versions(version, row.versions)
        and (not row.gpu or any(name == gpu or (title and name.lower() in title.lower()) for name in row.gpu))
        and (not row.architecture or architecture in row.architecture)
        and (not row.layer_kind or not kinds.isdisjoint(row.layer_kind))
        and (not row.quant or not quants.isdisjoint(row.quant))
    )


def layout_holds(layout: str, parallel: Parallel, gpus_per_node: int = 0) -> bool:
    """Whether a recipe is spread as "tp=8 ep", "nodes>1" or "tp=8 ep=8" describes."""
    sizes = {name: getattr(parallel, name) for name in ("tp", "pp", "dp", "dcp", "nodes")}
    sizes |= {"gpus": max(parallel.gpu_count, gpus_per_node), "ep": parallel.tp * parallel.dp * parallel.ep}
    for word in layout.split():
        match = re.fullmatch(r"([a-z]+)(=\d+|[<>]=?\d+)?", word)
        if match is None or match[1] not in sizes:
            raise BadInput(f"support.toml: {layout!r} is not a layout", hint='e.g. layout = "tp=8 ep"')
        if not setting_matches(sizes[match[1]], (match[2] or ">0").removeprefix("=")):
            return False
    return True


@functools.lru_cache(maxsize=256)
def version_note(engine: str, version: str) -> str:
    """Why the rows of a release may not hold for a version, or ""."""
    if not version_numbers(version):
        return f"{version!r} is not a version of {engine}: rows with a version range do not hold"
    if re.search(r"rc|dev|nightly|\+|g[0-9a-f]{7}", version):
        return f"{version} is not a release: the nearest release's rows are used"
    return ""


def build_of(version: str, runtime: Runtime, official_image: str) -> str:
    """The fork or nightly build that a recipe runs, or "" for the release of the version."""
    image, repository = runtime.image, official_image.partition(":")[0]
    if runtime.preset:
        return f"{runtime.preset} image"
    if runtime.kind in ("docker", "podman") and image and image.partition("@")[0].partition(":")[0] != repository:
        return image
    is_release = not version or version_numbers(version)
    is_build = re.search(r"\+(?!cu\d+$|cpu$)|nightly|\.dev|g[0-9a-f]{7}", version) or "nightly" in image
    return version or image if is_build or not is_release else ""
