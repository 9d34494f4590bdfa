"""Kernel findings that travel with a run: what was judged, by compiling or from the table, and what was not covered.

`kernels.json` holds one entry for each engine release, architecture and cache type that was looked at; a later look at
the same one takes its place.
"""

from dataclasses import replace

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.event import KernelsChecked
from moebox.core.kernel import KernelFindings, KernelScan, KnownFailure, KnownScan, NotCovered, find_arch, known_scan
from moebox.errors import BadInput, UnknownName
from moebox.kernels.judged import known_problems
from moebox.loose import get_objects
from moebox.store import Run
from moebox.units import format_count, plural

FILE = "kernels.json"
# A table row counts these, and does not name them.
_UNNAMED = "kernels that are not Triton's, or launches that need a GPU; `moebox doctor kernels` names them"
_SAME = ("engine", "version", "arch", "model", "tp", "kv")


def summarize_scan(scan: KernelScan) -> KernelFindings:
    """A scan, short: what fits is counted, what does not is told."""
    return KernelFindings(
        engine=scan.engine,
        version=scan.version,
        arch=scan.arch,
        model=scan.model,
        tp=scan.tp,
        kv=scan.kv,
        by="compiling",
        triton=scan.triton,
        launches=len(scan.launches),
        spills=sum(launch.verdict == "spills" for launch in scan.launches),
        bad=scan.failing_launches,
        not_covered=scan.not_covered,
        judged=scan.judged,
    )


def lookup_findings(deployment: Deployment) -> KernelFindings | None:
    """What the table of scanned releases says of a recipe; None where no Triton kernels are foreseen."""
    recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.required_box.smallest_gpu
    if deployment.engine.offloads_experts or gpu is None or not gpu.sm:
        return None
    if model is None or model.mla is None:
        return None
    version, kv = engines.version_or_newest(recipe), "fp8" if recipe.kv == "fp8" else "bf16"
    name = f"sm_{gpu.sm.replace('.', '')}"
    findings = KernelFindings(
        engine=recipe.engine,
        version=version,
        arch=name,
        model=model.name,
        tp=recipe.parallel.tp,
        kv=kv,
        by="table",
        judged=_judged(recipe.engine, version, name, model.name),
    )
    scan = None if model.mla.indexer else known_scan(engine=recipe.engine, version=version, sm=gpu.sm, kv=kv)
    return _scanned(findings, scan, gpu.smem) if scan else _unscanned(findings, model.title)


def _scanned(findings: KernelFindings, scan: KnownScan, limit: int) -> KernelFindings:
    others = [bad for bad in scan.bad if bad not in scan.attention_failures]
    left_out = f"{plural(scan.not_covered, 'case')} of the scan"
    return replace(
        findings,
        triton=scan.triton,
        launches=scan.launches,
        bad=tuple(replace(bad, limit_bytes=limit) for bad in scan.attention_failures),
        not_covered=(
            *([NotCovered(what=left_out, why=_UNNAMED)] if scan.not_covered else []),
            *map(_other_weights, others),
        ),
    )


def _unscanned(findings: KernelFindings, model: str) -> KernelFindings:
    engine, arch_name = findings.engine, findings.arch
    what = f"Triton kernels of {engine} {findings.version} for {model} on {arch_name}"
    why = f"`moebox doctor kernels --engine {engine} --arch {arch_name} --kv {findings.kv}` compiles them"
    return replace(findings, not_covered=(NotCovered(what=what, why=why),))


def _other_weights(bad: KnownFailure) -> NotCovered:
    what = f"{bad.kernel} ({bad.case}): {format_count(bad.shared_bytes)} bytes do not fit"
    return NotCovered(what=what, why="only weights of that kind use it")


def _judged(engine: str, version: str, arch_name: str, model: str) -> tuple[NotCovered, ...]:
    try:
        return known_problems(engine=engine, version=version, arch=find_arch(arch_name), model=model)
    except UnknownName:
        return ()


def save_findings(run: Run, findings: KernelFindings) -> None:
    """Write the findings into the run's folder, and say so in its journal."""
    try:
        before = run.read_json(FILE)
    except BadInput:  # somebody else's, or cut off: the new findings are worth more
        before = None
    mine = {name: getattr(findings, name) for name in _SAME}
    others = [scan for scan in get_objects(before, "scans") if not mine.items() <= scan.items()]
    run.write_json(FILE, {"scans": [*others, findings]})
    run.add_event(
        KernelsChecked(**mine, by=findings.by, launches=findings.launches, bad=len(findings.bad)),
        sync=True,
    )
