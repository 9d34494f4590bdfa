"""Kernel findings of a run, from compiling or from the table of scanned releases.

`kernels.json` has one entry for each engine release, architecture and cache type; a later scan replaces an earlier one.
"""

from dataclasses import replace

from moebox import codec, engines
from moebox.core.deployment import Deployment
from moebox.core.event import KernelsChecked
from moebox.core.kernel import Arch, KernelFindings, KernelScan, NotCovered, ScannedKernels, find_arch
from moebox.core.symptom import known_scan, symptoms
from moebox.errors import BadInput, UnknownName
from moebox.loose import get_objects
from moebox.store import Run
from moebox.units import format_count, plural

FILE = "kernels.json"
# A table row has their number, not their names.
_UNNAMED = "kernels that are not Triton's, or launches that need a GPU; `moebox doctor kernels` names them"
_SAME = ("engine", "version", "arch", "model", "tp", "kv")


def summarize_scan(scan: KernelScan) -> KernelFindings:
    """Summarize a scan: count the launches that fit, list those that do not."""
    shared, launches = codec.shared_fields(scan, ScannedKernels), len(scan.launches)
    spills = sum(launch.verdict == "spills" for launch in scan.launches)
    return KernelFindings(**shared, by="compiling", launches=launches, spills=spills, bad=scan.failing_launches)


def lookup_findings(deployment: Deployment) -> KernelFindings | None:
    """Findings for a recipe from the table of scanned releases, or None if it uses no Triton kernels."""
    recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.required_box.smallest_gpu
    if deployment.engine.offloads_experts or gpu is None or not gpu.sm:
        return None
    if model is None or model.mla is None:
        return None
    version = recipe.engine_version or engines.newest_version(recipe.engine)
    kv = "fp8" if recipe.kv == "fp8" else "bf16"
    name = f"sm_{gpu.sm.replace('.', '')}"
    try:
        judged = known_problems(engine=recipe.engine, version=version, arch=find_arch(name), model=model.name)
    except UnknownName:
        judged = ()
    tp = recipe.parallel.tp
    findings = KernelFindings(
        engine=recipe.engine, version=version, arch=name, model=model.name, tp=tp, kv=kv, by="table", judged=judged
    )
    scan = None if model.mla.indexer else known_scan(engine=recipe.engine, version=version, sm=gpu.sm, kv=kv)
    if scan is None:
        what = f"Triton kernels of {recipe.engine} {version} for {model.title} on {name}"
        why = f"`moebox doctor kernels --engine {recipe.engine} --arch {name} --kv {kv}` compiles them"
        return replace(findings, not_covered=(NotCovered(what=what, why=why),))
    not_covered = []
    if scan.not_covered:
        not_covered.append(NotCovered(what=f"{plural(scan.not_covered, 'case')} of the scan", why=_UNNAMED))
    for row in scan.bad:
        if row not in scan.attention_failures:
            what = f"{row.kernel} ({row.case}): {format_count(row.shared_bytes)} bytes do not fit"
            not_covered.append(NotCovered(what=what, why="only weights of that kind use it"))
    bad = tuple(replace(bad, limit_bytes=gpu.smem) for bad in scan.attention_failures)
    return replace(findings, triton=scan.triton, launches=scan.launches, bad=bad, not_covered=tuple(not_covered))


def known_problems(*, engine: str, version: str, arch: Arch, model: str) -> tuple[NotCovered, ...]:
    """Return known problems of this engine version with kernels that Triton does not compile (CUTLASS, Marlin …)."""
    if not version:
        return ()
    sm = f"{arch.capability // 10}.{arch.capability % 10}"
    return tuple(
        NotCovered(what=f"{symptom.id}: {symptom.cause}", why=symptom.remedy)
        for symptom in symptoms()
        if symptom.area in ("attention", "moe", "flashinfer")
        and engine in symptom.applies.engine
        and symptom.applies.covers(version=version, sm=sm)
        and symptom.applies.covers_model(model)
    )


def save_findings(run: Run, findings: KernelFindings) -> None:
    """Write the findings to the run folder and its journal."""
    try:
        before = run.read_json(FILE)
    except BadInput:  # damaged: replace it
        before = None
    key = codec.pick_fields(findings, _SAME)
    others = [scan for scan in get_objects(before, "scans") if not key.items() <= scan.items()]
    run.write_json(FILE, {"scans": [*others, findings]})
    event = KernelsChecked(**key, by=findings.by, launches=findings.launches, bad=len(findings.bad))
    run.add_event(event, sync=True)
