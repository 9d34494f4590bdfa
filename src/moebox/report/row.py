"""The row of the public matrix that a run gives (`moebox pack --row`)."""

import hashlib
from datetime import UTC, datetime

from moebox import codec
from moebox.core.matrix_row import MatrixRow, SpeedCell, row_problems
from moebox.errors import BadInput, refuse_if
from moebox.runs.record import RunRecord

SETTINGS = ("kv", "context", "max_seqs", "memory_utilization")


def row_of_run(record: RunRecord) -> MatrixRow:
    """Return the run's row. Raise BadInput for a run that shows nothing of an engine on a box."""
    recipe, box = record.recipe, record.box
    refuse_if(record.simulation, f"{record.id} is a simulation: it shows nothing of an engine")
    if recipe is None or box is None:
        missing = "recipe.toml" if recipe is None else "box.toml"
        raise BadInput(f"{record.id} has no {missing}", hint="`moebox run` and `moebox up` write both")
    checks: dict[str, str] = {check.name: check.verdict for check in record.checks}
    loads = [load for load in record.loads if load.output_tok_s and not load.partial]
    refuse_if(
        not checks and not loads, f"{record.id} has neither checks nor measurements", hint="`moebox verify`, `bench`"
    )
    failed = "fail" in checks.values()
    parallel = {name: str(value) for name, value in codec.to_plain(recipe.parallel).items() if value not in (1, False)}
    settings = {name: str(getattr(recipe, name)) for name in SETTINGS if getattr(recipe, name, None)}
    flags = {f"flags.{name}": str(value) for name, value in recipe.flags.items()}
    row = MatrixRow(
        source="moebox",
        date=datetime.fromtimestamp(record.ended or record.started, UTC).date().isoformat(),
        state="wrong" if failed else "runs",
        verified=bool(checks) and not failed and not record.imported,
        box=box.name,
        gpus=tuple(gpu.title for gpu in box.gpus),
        cpu=box.cpu.model,
        ram=box.ram,
        engine=recipe.engine,
        model=recipe.model,
        checkpoint=recipe.checkpoint,
        recipe_digest=hashlib.sha256(codec.to_json(recipe, indent=None).encode()).hexdigest(),
        settings=parallel | settings | flags,
        versions=dict(record.versions),
        checks=checks,
        speed=tuple(
            SpeedCell(
                concurrency=load.concurrency,
                input_tokens=load.mean_input_tokens or load.input_tokens,
                output_tokens=load.mean_output_tokens or load.output_tokens,
                output_tok_s=load.output_tok_s or 0.0,
                ttft_ms=load.ttft.p50 or load.ttft.median or load.ttft.mean,
                conditions=(*load.flags, *(("limited by the client",) if load.client_limited else ())),
            )
            for load in loads
        ),
    )
    if problem := next(row_problems(row), ""):
        raise BadInput(f"{record.id}: {problem}")
    return row
