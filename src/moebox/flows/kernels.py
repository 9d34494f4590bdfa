"""Kernel findings that travel with a run: what was judged, by compiling or from the table, and what was not covered.

`kernels.json` holds one entry for each engine release, architecture and cache type that was looked at; a later look at
the same one takes its place.
"""

from typing import Any

from moebox import engines
from moebox.codec import plain
from moebox.core import catalogue
from moebox.core.deployment import Deployment
from moebox.core.event import KernelsJudged
from moebox.core.kernel import KernelScan, arch, known_bad
from moebox.errors import BadInput, UnknownName
from moebox.kernels.judged import judged
from moebox.store import Run
from moebox.units import count

FILE = "kernels.json"
Findings = dict[str, Any]
# A table row counts these, and does not name them.
_UNNAMED = "kernels that are not Triton's, or launches that need a GPU; `moebox doctor kernels` names them"
_SAME = ("engine", "version", "arch", "model", "tp", "kv")


def compiled(scan: KernelScan) -> Findings:
    """A scan, short: what fits is counted, what does not is told."""
    return {
        **_about(scan.engine, scan.version, scan.arch, scan.model, scan.tp, scan.kv),
        "by": "compiling",
        "triton": scan.triton,
        "launches": len(scan.launches),
        "spills": sum(one.verdict == "spills" for one in scan.launches),
        "bad": [plain(one) for one in scan.bad],
        "not_covered": [plain(one) for one in scan.not_covered],
        "judged": [plain(one) for one in scan.judged],
    }


def looked_up(deployment: Deployment) -> Findings | None:
    """What the table of scanned releases says of a recipe; None where no Triton kernels are foreseen."""
    recipe, model, gpu = deployment.recipe, deployment.found_model, deployment.place.gpu
    if deployment.engine.offloads or gpu is None or model is None or model.mla is None or not gpu.sm:
        return None
    version, kv = recipe.engine_version or engines.newest(recipe.engine), "fp8" if recipe.kv == "fp8" else "bf16"
    name = f"sm_{gpu.sm.replace('.', '')}"
    found = {**_about(recipe.engine, version, name, model.name, recipe.parallel.tp, kv), "by": "table"}
    row = _row(recipe.engine, version, name, kv) if model.mla.indexer is None else None
    if row is None:
        why = f"`moebox doctor kernels --engine {recipe.engine} --arch {name} --kv {kv}` compiles them"
        missing = {"what": f"Triton kernels of {recipe.engine} {version} for {model.title} on {name}", "why": why}
        return {**found, "launches": 0, "spills": 0, "bad": [], "not_covered": [missing], "judged": _judged(found)}
    attention = known_bad(engine=recipe.engine, version=version, sm=gpu.sm, kv=kv)
    others = [bad for bad in row["bad"] if bad not in attention]
    return {
        **found,
        "triton": row["triton"],
        "launches": row["launches"],
        "spills": 0,
        "bad": [{**bad, "limit_bytes": gpu.smem} for bad in attention],
        "not_covered": [*_left_out(row), *map(_other_weights, others)],
        "judged": _judged(found),
    }


def _left_out(row: Findings) -> list[Findings]:
    """The table counts what a scan could not judge."""
    number = row["not_covered"]
    what = f"{number} case{'s' * (number != 1)} of the scan"
    return [{"what": what, "why": _UNNAMED}] if number else []


def _other_weights(bad: Findings) -> Findings:
    asked = f"{bad['kernel']} ({bad['case']}): {count(bad['shared_bytes'])} bytes do not fit"
    return {"what": asked, "why": "only weights of that kind use it"}


def _about(engine: str, version: str, arch_name: str, model: str, tp: int, kv: str) -> Findings:
    return dict(zip(_SAME, (engine, version, arch_name, model, tp, kv), strict=True))


def _row(engine: str, version: str, arch_name: str, kv: str) -> Findings | None:
    wanted = (engine, version, arch_name, kv)
    rows = catalogue.table("kernels")["scan"]
    return next((row for row in rows if (row["engine"], row["version"], row["arch"], row["kv"]) == wanted), None)


def _judged(found: Findings) -> list[Any]:
    try:
        target = arch(found["arch"])
    except UnknownName:
        return []
    known = judged(engine=found["engine"], version=found["version"], arch=target, model=found["model"])
    return [plain(one) for one in known]


def keep(run: Run, found: Findings) -> None:
    """Write the findings into the run's folder, and say so in its journal."""
    try:
        before = run.read_json(FILE)
    except BadInput:  # somebody else's, or cut off: the new findings are worth more
        before = None
    scans = before.get("scans") if isinstance(before, dict) else None
    others = [one for one in scans or [] if isinstance(one, dict) and _key(one) != _key(found)]
    run.write_json(FILE, {"scans": [*others, found]})
    figures = {name: found[name] for name in (*_SAME, "by", "launches")}
    run.event(KernelsJudged(**figures, bad=len(found["bad"])), sync=True)


def _key(found: Findings) -> tuple[Any, ...]:
    return tuple(found.get(name) for name in _SAME)
