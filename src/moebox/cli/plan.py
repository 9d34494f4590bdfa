"""`moebox plan`: what fits, how, and how fast."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.checkpoint import look_up_model
from moebox.cli.output import print_json, stderr_console, stdout_console, write_file
from moebox.cli.pinned import PlanArgs
from moebox.core import validation
from moebox.core.plan import DeviceMemory, Goal, Plan, PlanWarning
from moebox.errors import DoesNotFit
from moebox.flows import boxes
from moebox.loose import Document
from moebox.planner.choose import choose_plan

NOTHING = PlanArgs()


def plan(
    model: str,
    *,
    box: str | None = None,
    goal: Goal = "throughput",
    bold: Annotated[bool, Parameter(negative=())] = False,
    ram: str = "",
    ram_bandwidth: str = "",
    pinned: Annotated[PlanArgs, Parameter(name="*")] = NOTHING,
    why: Annotated[bool, Parameter(negative=())] = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find the recipe for MODEL on this machine or a described one: memory of every device, forecast, reasons.

    The first recipe is careful: published weights, no draft, 65,536 tokens, text only, 0.90 of each GPU.
    Exit code 1 when nothing fits.

    Args:
        model: A name from the catalogue, a folder with config.json, or a .gguf file.
        box: COUNTxGPU such as 8x-rtx-pro-6000-server, or a TOML file; this machine without it.
        goal: What to rank by.
        bold: Take the best forecast at once: drafts, fp8 cache and the patched image included.
        ram: Memory to assume, such as 768GiB.
        ram_bandwidth: Its bandwidth, such as 614GB/s.
        pinned: Settings that must hold.
        why: Print the arithmetic line by line, with the source of each constant.
        output: Write the recipe to this file.
        json: Print JSON.
    """
    known = look_up_model(model)
    found, checkpoints = known.model, known.checkpoints
    where = boxes.calibrated_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
    try:
        chosen = choose_plan(where, found, checkpoints, pinned.constraints(goal=goal, bold=bold))
    except DoesNotFit as problem:
        if json:
            print_json(refusal_document(problem))
        raise
    notes = tuple(PlanWarning(symptom="", text=note, severity="note") for note in known.notes)
    chosen = replace(chosen, warnings=(*notes, *chosen.warnings))
    chosen = boxes.with_planned_box(chosen, box, ram=ram, ram_bandwidth=ram_bandwidth)
    validation.validate_recipe(chosen.recipe)  # what `up` would refuse is not written first
    if output:
        write_recipe(chosen, output)
    if json:
        print_json(plan_document(chosen))
        return 0
    from moebox.cli.plan_view import arithmetic_page, plan_page

    stdout_console().print(arithmetic_page(chosen, found) if why else plan_page(chosen, found, saved=output))
    return 0


def write_recipe(chosen: Plan, path: Path) -> None:
    """The recipe as TOML, with the plan's reasons above it."""
    head = [f"# {chosen.recipe.name}: planned by moebox for {chosen.box}, goal {chosen.goal}."]
    head += [f"# - {line}" for line in chosen.reasons]
    write_file(path, "\n".join(head) + "\n\n" + codec.to_toml(chosen.recipe))
    stderr_console().print(f"wrote {path}", soft_wrap=True)


def refusal_document(problem: DoesNotFit) -> Document:
    """The answer no, for scripts."""
    return {
        "fits": False,
        "shortfall_bytes": problem.shortfall,
        "error": problem.message,
        "remedies": problem.hint.split("; ") if problem.hint else [],
    }


def plan_document(chosen: Plan) -> Document:
    """The plan under the keys that scripts rely on."""
    memory = chosen.memory
    return {
        "box": chosen.box,
        "goal": chosen.goal,
        "recipe": chosen.recipe,
        "memory": {
            "per_device": [device_document(budget) for budget in memory.devices],
            "kv_tokens": memory.kv_tokens,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "requests_of_context": memory.kv_tokens // max(chosen.recipe.context, 1),
            "fits": memory.fits,
        },
        "forecast": chosen.forecast,
        "answer_tok_s": chosen.answer_tok_s,
        "reasons": chosen.reasons,
        "warnings": chosen.warnings,
        "alternatives": chosen.alternatives,
        "refused": chosen.refused,
        "why": chosen.why,
        "measured": chosen.measured,
        "basis": chosen.basis,
    }


def device_document(budget: DeviceMemory) -> Document:
    """One device's bytes; the five parts sum to its total."""
    return {
        "device": budget.device,
        "total_bytes": budget.total,
        "weights_bytes": budget.weights_total + budget.draft,
        "kv_bytes": budget.kv,
        "overhead_bytes": budget.activations + budget.overhead,
        "free_bytes": budget.free,
        "by_component": budget.weights,
        "draft_bytes": budget.draft,
        "activations_bytes": budget.activations,
    }
