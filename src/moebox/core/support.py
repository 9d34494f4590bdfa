"""Whether an engine version runs a setup: the one function that plan, up, forecast, climb and doctor ask.

It reads the support matrix (reports), the start rules (the engines' own checks) and data/architectures.toml (the first
release that has an architecture).
"""

import re
from dataclasses import dataclass, replace

from moebox.core import families, registry, start_rules
from moebox.core.catalogue import table_rows
from moebox.core.model import Model
from moebox.core.start_rules import StartRefusal
from moebox.core.support_matrix import (
    WORST_FIRST,
    Match,
    Setup,
    State,
    SupportRow,
    candidate_rows,
    support_rows,
    version_note,
)
from moebox.core.support_settings import BUILD_KEYS, match_row
from moebox.core.versions import in_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The answer: the rows that decide it, and rows that hold only under further conditions."""

    matches: tuple[Match, ...] = ()  # certain and not contradicted by narrower ones, the worst first
    possible: tuple[Match, ...] = ()  # rows with conditions that are not known to hold
    contradicted: tuple[SupportRow, ...] = ()  # rows that a narrower or newer one stands against
    refusals: tuple[StartRefusal, ...] = ()  # of the engine's own checks
    basis: str = ""  # why it should start, if there is no report: the engine's own checks, or its list of models
    note: str = ""  # why the rows of a release may not hold for this build or version

    @property
    def state(self) -> State:
        """What the engine's own checks refuse, or else the worst of the rows that decide, or else what is accepted."""
        if self.refusals:
            return "no-start"
        return next((match.row.state for match in self.answers), "accepted" if self.basis else "unknown")

    @property
    def answers(self) -> tuple[Match, ...]:
        """The rows that decide the state: not on parsing, not seen sometimes only, not of another architecture."""
        own = (match for match in self.matches if not match.row.concerns_parsing and not match.row.sometimes)
        return tuple(match for match in own if match.row.state != "runs" or match.row.architecture)

    @property
    def factor(self) -> float:
        """The share of the speed that measured slow rows leave."""
        factors = [match.row.factor for match in self.matches if match.row.state == "slow" and not match.row.estimated]
        return min(filter(None, factors), default=1.0)


def support_for(setup: Setup) -> Support:
    """What is known of a setup. The narrowest row wins over those it covers, then the newest.

    A row stands against another only if it has a condition on everything that the other has one on: a report that
    something runs does not contradict one about a setting that it does not mention. A report that the architecture runs
    on this GPU with this version stands against a refusal that was read from the sources.
    """
    matches = [found for row in candidate_rows(setup) if (found := match_row(row, setup))]
    note = version_note(setup.engine, setup.version)
    # A build between two releases has most of what the later one brings, so that one's checks are asked.
    newer = start_rules.next_release(setup.engine, setup.version) if setup.fork in ("", setup.version) else ""
    if setup.fork:
        note = f"{setup.fork} is no release, so what is known of releases may not hold"
    of_release = [match for match in matches if setup.fork and BUILD_KEYS.isdisjoint(match.row.settings)]
    if newer and (older := start_rules.release_rules(setup.engine, setup.version)):
        # A row of the earlier release alone may not hold; one of both, or of builds between them, does.
        of_older = [match for match in of_release if in_versions(older.release, match.row.versions)]
        of_release = [match for match in of_older if not in_versions(newer, match.row.versions)]
    own = [match for match in matches if match not in of_release]
    certain = [match for match in own if not match.conditions]
    standing = [match for match in certain if not any(_overrides(other.row, match.row) for other in certain)]
    standing.sort(key=lambda match: (WORST_FIRST.index(match.row.state), -len(match.row.dimensions)))
    seen_running = any(
        match.row.state == "runs" and match.row.dimensions >= {"versions", "gpu", "architecture"} for match in standing
    )
    checked = replace(setup, fork="", version=newer) if newer else setup
    refusals = () if seen_running else _refusals(checked)
    return Support(
        matches=tuple(standing),
        possible=(*(match for match in own if match.conditions), *of_release),
        contradicted=tuple(match.row for match in certain if match not in standing),
        refusals=refusals,
        basis="" if refusals else _acceptance(checked),
        note=note,
    )


def _acceptance(setup: Setup) -> str:
    """Why an engine should start a setup; "" if that is not known.

    Without a release's own checks its list of models decides, except on SM120 and SM121: they lack shared memory and
    instructions that kernels for other Blackwell GPUs use, so a list of models is no evidence there.
    """
    if kernels := start_rules.accepted_kernels(setup):
        return f"its own checks accept it, with {kernels}"
    if setup.model is None or setup.fork or (setup.gpu.startswith("sm12") and "gguf" not in setup.quants):
        return ""
    names, since, listed = {setup.model.architecture}, "", start_rules.engine_architectures(setup.engine)
    if row := families.architecture_support(setup.model):
        names, first = {*row.names}, row.first.get(setup.engine, "")
        since = f" since {first}" if first else ""
    elif any(setup.engine in each.first for each in families.architecture_rows()):  # not an engine of another package
        listed |= {model.architecture for model in table_rows(Model, "models", "model", setup.model.architecture)}
    if not since and names.isdisjoint(listed):
        return ""
    return f"it has the architecture{since}; what it checks of GPU and format is not known"


def known_to_run(setup: Setup) -> SupportRow | None:
    """The newest report that the model's architecture runs on this GPU, with any engine; None if there is none."""
    architecture = setup.model.architecture if setup.model else ""
    rows = (
        row
        for rows in support_rows().values()
        for row in rows
        if row.state == "runs" and architecture in row.architecture and setup.gpu in row.gpu and row.versions
    )
    return max(rows, key=lambda row: (row.engine == setup.engine, row.date), default=None)


def _refusals(setup: Setup) -> tuple[StartRefusal, ...]:
    """What the engine's sources and the table of architectures refuse."""
    title = registry.engine_traits(setup.engine).title
    text, source = families.unsupported_reason(setup.engine, title, setup.model, setup.version)
    if text:
        return (StartRefusal(text=text, at=source, release=""),)
    return tuple(start_rules.start_refusals(setup))


def _overrides(one: SupportRow, other: SupportRow) -> bool:
    """Whether a row is narrower than another on everything the other has conditions on, or as narrow and newer."""
    both_fail = max(map(WORST_FIRST.index, (one.state, other.state))) < WORST_FIRST.index("slow")  # both may be true
    if one is other or one.sometimes or one.state == other.state or both_fail or not one.dimensions >= other.dimensions:
        return False
    if one.state == "runs" and (other.sometimes or other.state == "slow"):
        return False  # it ran, which is no evidence on the speed or on every request
    # A row with more conditions is narrower; of two with as many, the one whose versions end.
    ranks = [(len(row.dimensions), bool(re.search(r"<|==|\.\.\S", row.versions)), row.date) for row in (one, other)]
    return ranks[0] > ranks[1]
