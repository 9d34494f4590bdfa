"""Find the first bad version between a good and a bad one."""

import contextlib
import math
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from moebox import codec, files
from moebox.checkpoint import deploy
from moebox.core import registry
from moebox.core.box import Box
from moebox.core.engine_source import EngineSource, parse_source
from moebox.core.recipe import Recipe
from moebox.core.versions import version_numbers
from moebox.environment import chosen_environment
from moebox.errors import AnswerIsNo, BadInput, ExternalError, MoeboxError, refuse_if
from moebox.flows.switch import paused_endpoint
from moebox.flows.upgrade import Judges, UpgradeEffort, try_upgrade, with_engine
from moebox.serve import installs
from moebox.serve.install import disk_bytes, pip_environment
from moebox.serve.watch import Notify
from moebox.store import Run, runs_dir
from moebox.units import format_gb, plural

VersionMark = Literal["good", "bad", "skip"]
JOURNAL = "bisect.json"
CONFIRMED = 2  # equal judgements of the two neighbours at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What is known so far; written after every judgement."""

    recipe: str
    good: str
    bad: str
    judges: Judges
    candidates: tuple[str, ...]  # from good to bad
    marks: dict[str, tuple[VersionMark, ...]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    first_bad: str = ""
    suspects: tuple[str, ...] = ()  # the first bad one, and those before it that were skipped
    changes: tuple[str, ...] = ()
    run: str = ""
    tree: str = ""  # of builds

    def mark_of(self, version: str) -> VersionMark | None:
        """The judgement of most trials, None if there is none or they are equal."""
        marks = self.marks.get(version, ())
        best = max(set(marks), key=marks.count, default=None)
        return None if best is None or (len(set(marks)) > 1 and 2 * marks.count(best) == len(marks)) else best

    @property
    def ends(self) -> tuple[int, int]:
        """Places of the last good and the first bad candidate that are known."""
        marks = [*map(self.mark_of, self.candidates)]
        bad = marks.index("bad") if "bad" in marks else len(marks) - 1
        return max((place for place in range(bad) if marks[place] == "good"), default=0), bad

    @property
    def next_version(self) -> str:
        """The candidate to judge next: the ends, the middle, then the neighbours again; "" at the end."""
        for end in (-1, 0):
            if self.mark_of(self.candidates[end]) is None:
                return self.candidates[end]
        low, high = self.ends
        open_places = [place for place in range(low + 1, high) if self.mark_of(self.candidates[place]) is None]
        if open_places:
            return self.candidates[min(open_places, key=lambda place: abs(2 * place - low - high))]
        for place in (high, low):
            version = self.candidates[place]
            if place and self.marks.get(version, ()).count(self.mark_of(version) or "skip") < CONFIRMED:
                return version
        return ""


def plan_bisection(recipe: Recipe, versions: Sequence[str], judges: Judges, *, tree: str, box: Box) -> Bisection:
    """List the candidates between two versions, or of a list; nothing is installed or written yet."""
    ends, between = (versions[0], versions[-1]), versions[1:-1]
    sources = list(map(parse_source, ends))
    builds = [each.source for each in installs.list_installs() if each.engine == sources[0].engine and each.source]
    tree = tree or ["", *builds][-1]
    refuse_if(sources[0].engine != sources[1].engine, f"{ends[0]} and {ends[1]} are two engines")
    refuse_if(ends[0] == ends[1], f"{ends[0]} is both the good and the bad version", hint="good comes first")
    text = f"{ends[0]}: the recipe runs {recipe.engine}"
    refuse_if(sources[0].engine != recipe.engine, text, hint="name its versions")
    if problem := deploy(recipe).engine.hardware_problem(box.gpus, deploy(recipe).model):
        raise ExternalError(f"{problem}; nothing is installed", hint="the machine that serves the recipe can try it")
    candidates = tuple(list_candidates(sources[0], sources[1], between, tree))
    return Bisection(recipe=recipe.name, good=ends[0], bad=ends[1], judges=judges, candidates=candidates, tree=tree)


def planned_installs(state: Bisection) -> str:
    """How many versions have to be installed, and how large they are; "" if all are there."""
    sources = [*map(parse_source, state.candidates)]
    missing = [each for each in sources if not installs.find_install(each.engine, each.version, (each.kind,))]
    most, size = min(len(missing), math.ceil(math.log2(len(sources))) + 3), disk_bytes(sources[0])
    about = f"{plural(len(missing), 'version')} of {sources[0].engine}{f', about {format_gb(size)} each' * bool(size)}"
    return f"up to {most} of {about}, one after the other" * bool(missing)


def bisect_versions(named: str, recipe: Recipe, run: Run, state: Bisection, *, box: Box, notify: Notify) -> Bisection:
    """Find the first bad version. Raise AnswerIsNo if the good end is bad or the bad good."""
    candidates, tree = state.candidates, state.tree
    before = {each.name for each in installs.list_installs()}
    effort = UpgradeEffort(judges=state.judges)

    def install(version: str) -> Recipe:
        return with_engine(recipe, parse_source(version), tree=tree, notify=lambda text: None)

    def judge(version: str) -> tuple[VersionMark, str]:
        """Judge one version. One that is not installed or does not start is skipped, unless it is the bad end."""
        nonlocal effort
        is_end = version == candidates[-1]
        try:
            new = install(version)
        except ExternalError as problem:
            if is_end:
                raise
            return "skip", problem.message
        folder = run.make_folder(f"{run.id}-{sum(map(len, state.marks.values())):02d}")
        compare = replace(effort.compare, seed=random.randrange(10**6))
        effort = replace(effort, compare=compare)
        result = try_upgrade(good, new, ("good", version), folder, effort, box, lambda text: None)
        slowest = min(result.gains, key=lambda row: row.gain.share if row.gain else 0.0, default=None)
        if is_end and slowest:
            loads = (slowest.concurrency,) * (slowest.what != "prefill")
            compare = replace(compare, concurrency=loads)
            effort = replace(effort, compare=compare, prompts=not loads)
        if result.outcome in ("keep", "no difference"):
            return "good", ""
        is_bad = result.outcome == "roll back" and ("B" in result.sides or is_end)
        return "bad" if is_bad else "skip", result.reasons[0] if result.reasons else ""

    good = install(candidates[0])
    with paused_endpoint(named, recipe, good, run):
        while version := state.next_version:
            mark, reason = judge(version)
            marks = {**state.marks, version: (*state.marks.get(version, ()), mark)}
            reasons = {**state.reasons, **({version: reason} if reason else {})}
            state = replace(state, marks=marks, reasons=reasons)
            run.write_json(JOURNAL, state)
            notify(f"{version}: {mark}{f' ({reason})' if reason else ''}")
            if version not in (candidates[0], candidates[-1]) and version not in before:
                with contextlib.suppress(MoeboxError):
                    installs.remove_install(version)
            refuse_ends(state)
    low, high = state.ends
    suspects = changes = candidates[low + 1 : high + 1]
    if parse_source(state.good).kind == "build":
        commits = "..".join(parse_source(candidates[place]).version for place in (low, high))
        changes = tuple(_run_git(tree, "log", "--oneline", "--no-decorate", commits).splitlines()) or changes
    state = replace(state, first_bad=candidates[high], suspects=suspects, changes=changes)
    run.write_json(JOURNAL, state)
    run.write_file("issue.md", issue_text(state))
    return state


def refuse_ends(state: Bisection) -> None:
    """Raise AnswerIsNo once the good end is known to be bad or not to run, or the bad end not to be bad."""
    first, last = state.candidates[0], state.candidates[-1]
    why = {version: f": {reason}" for version, reason in state.reasons.items()}
    if state.mark_of(last) in ("good", "skip"):
        text = f"{last} is as good as {first}, so there is nothing to find{why.get(last, '')}"
        raise AnswerIsNo(text, hint="name another bad version")
    if state.mark_of(first) == "bad":
        raise AnswerIsNo(f"{first} is not good against itself{why.get(first, '')}", hint="the machine is too noisy")
    if state.mark_of(first) == "skip":
        raise AnswerIsNo(f"{first} could not be judged{why.get(first, '')}", hint="name another good version")


def list_candidates(good: EngineSource, bad: EngineSource, between: Sequence[str], tree: str) -> list[str]:
    """Versions from good to bad: a given list, commits of a source tree, or releases in the package index."""
    inner = list(between)
    if not between and good.kind == "build":
        refuse_if(not tree, "a bisection over builds needs their repository", hint="--source DIR")
        words = _run_git(tree, "rev-list", "--reverse", "--first-parent", f"{good.version}..{bad.version}").split()
        text = f"{tree}: no commit lies between {good.version} and {bad.version}"
        refuse_if(not words, text, hint="good comes first")
        inner = [f"{good.engine}@{commit}" for commit in words[:-1]]
    elif not between:
        refuse_if(good.kind == "image", "images cannot be listed", hint="--between lists them, oldest first")
        package, (options, env) = registry.engine_traits(good.engine).package, pip_environment()
        with files.scratch_folder("releases") as folder:  # pip lists what it could install
            argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), *options]
            argv.append(f"{package}==0+none")
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=chosen_environment(env))
        match = re.search(r"\(from versions: ([^)]*)\)", done.stderr)
        if match is None or match[1] == "none":
            text = f"the package index lists no release of {package}"
            raise ExternalError(text, hint="--between lists versions, oldest first")
        low, high, versions = version_numbers(good.version), version_numbers(bad.version), match[1].split(", ")
        refuse_if(low >= high, f"{bad} is not newer than {good}", hint="good comes first")
        versions = [each for each in sorted(versions, key=version_numbers) if low < version_numbers(each) < high]
        inner = [f"{good.engine}=={each}" for each in versions]
    return [str(good), *inner, str(bad)]


def _run_git(tree: str, *words: str) -> str:
    argv = ["git", "-C", tree, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=chosen_environment())
    refuse_if(done.returncode, f"{tree}: {(done.stderr.strip() or 'git failed').splitlines()[0][:200]}")
    return done.stdout


def open_journal(state: Bisection) -> tuple[Run, Bisection]:
    """The unfinished bisection of the same versions, or a new one."""
    for folder in sorted(runs_dir().glob(f"*-bisect-{state.recipe}-*"), reverse=True):
        with contextlib.suppress(BadInput, OSError, AnswerIsNo):
            known = codec.decode(Bisection, codec.load_json(folder / JOURNAL), where=str(folder))
            if (known.candidates, known.judges) == (state.candidates, state.judges) and not known.first_bad:
                refuse_ends(known)  # which began anew: what failed may be there now
                return Run.resume(str(folder)), known
    run = Run.create(f"bisect-{state.recipe}")
    state = replace(state, run=str(run.path))
    run.write_json(JOURNAL, state)
    return run, state


def issue_text(found: Bisection) -> str:
    lines = [f"First bad version: {found.first_bad}", "", f"Good: {found.good}, bad: {found.bad}."]
    if found.first_bad in found.reasons:
        lines.append(f"What is wrong: {found.reasons[found.first_bad]}")
    if len(found.suspects) > 1:
        lines.append(f"These before it could not be tried: {', '.join(found.suspects[:-1])}")
    lines += ["", "Tried:"]
    for version in (version for version in found.candidates if version in found.marks):
        reason = f" – {found.reasons[version]}" if version in found.reasons else ""
        lines.append(f"- {version}: {', '.join(found.marks[version])}{reason}")
    return "\n".join([*lines, "", "Changes:", *(f"- {change}" for change in found.changes), ""])
