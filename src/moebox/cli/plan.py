"""`moebox plan`: what fits, how, and how fast; the answer on one screen, the rest by flags."""

import shlex
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from moebox import api, codec
from moebox.cli import plan_view
from moebox.cli.display import print_assessment
from moebox.cli.flags import All, AsJson, OutputPath, Ram, RamBandwidth, Switch, given_flags
from moebox.cli.forecast_target import NO_PLAN_ARGS, PlanArgs
from moebox.cli.output import print_json, print_note, print_parts, write_file
from moebox.core.catalogue import known_divergences
from moebox.core.plan import Goal, Plan
from moebox.core.setting import flag_words
from moebox.errors import DoesNotFit, refuse_if
from moebox.flows import recipes
from moebox.loose import Document

# Keys of the JSON document that are fields of a plan.
PLAN_KEYS: tuple[str, ...] = ("box", "goal", "recipe", "forecast", "answer_tok_s", "reasons", "warnings")
PLAN_KEYS += ("alternatives", "refused", "why", "measured", "basis")


def plan(
    model: str,
    *,
    box: str | None = None,
    goal: Goal = "throughput",
    bold: Switch = False,
    ram: Ram = "",
    ram_bandwidth: RamBandwidth = "",
    args: Annotated[PlanArgs, Parameter(name="*")] = NO_PLAN_ARGS,
    why: Switch = False,
    memory: Switch = False,
    everything: All = False,
    offline: Switch = False,
    output: OutputPath = None,
    json: AsJson = False,
) -> int:
    """Find the recipe for MODEL on this machine or a described one: whether it fits, how fast it is, what to do next.

    The first recipe is careful: published weights, no draft, 65,536 tokens, text only, 0.90 of each GPU.
    Exit code 1 when nothing fits.

    Args:
        model: A catalogue name, ORG/REPO[@REVISION][:QUANT] of the Hub, a folder with config.json or a .gguf file.
        box: COUNTxGPU such as 8x-h200 or 1x-rtx-5090+512GB, or a TOML file. Default: this machine.
        goal: What to rank by.
        bold: Take the best forecast at once: drafts, fp8 cache and the patched image included.
        args: Settings that the plan must have.
        why: Print the arithmetic line by line, with the source of each constant, and the warnings in full.
        memory: Print the memory of every device by use.
        everything: Print reasons, memory, forecast, alternatives, warnings and the engine's command.
        offline: Do not ask the Hub; repositories that were read before are still known.
        output: Write the recipe to this file.
    """
    pages = given_flags(why=why, memory=memory, all=everything)
    refuse_if(len(pages) > 1, f"{' and '.join(pages)} are different pages", hint="give one of them")
    known = recipes.find_model(model, offline=offline)
    constraints = args.constraints(goal=goal, bold=bold)
    try:
        named = model if recipes.is_phantom(model) else known
        chosen = api.plan(named, box=box, ram=ram, ram_bandwidth=ram_bandwidth, constraints=constraints)
    except DoesNotFit as problem:
        if json:
            refusal = {"fits": False, "shortfall_bytes": problem.shortfall, "error": problem.message}
            print_json(refusal | {"remedies": problem.hint.split("; ") if problem.hint else []})
        raise
    if output:
        reasons = "".join(f"# - {line}\n" for line in chosen.reasons)
        head = f"# {chosen.recipe.name}: planned by moebox for {chosen.box}, goal {chosen.goal}.\n{reasons}"
        write_file(output, f"{head}\n{codec.to_toml(chosen.recipe)}")
        print_note(f"wrote {output}")
    if json:
        print_json(plan_document(chosen))
        return 0
    given: Document = {"box": box, "goal": goal if goal != "throughput" else None, "bold": bold, "ram": ram}
    given |= {"ram_bandwidth": ram_bandwidth, **asdict(args), "offline": offline, "-o": "recipe.toml"}
    command = shlex.join(["moebox", "plan", model, *flag_words(given)])
    steps = plan_view.NextSteps(save=command, saved=output, here=not (box or ram))
    if why:
        print_parts(*plan_view.arithmetic_page(chosen, known.model))
    elif memory:
        print_parts(plan_view.plan_title(chosen, known.model), "", *plan_view.memory_part(chosen))
    elif everything:
        print_parts(*plan_view.whole_page(chosen, known.model, steps))
    else:
        print_assessment(plan_view.answer(chosen, known.model, steps))
    return 0


def plan_document(chosen: Plan) -> Document:
    """Return the plan under the keys that scripts rely on; the five parts of a device sum to its total."""
    memory, devices = chosen.memory, list[Document]()
    for device in memory.devices:
        row: Document = {"device": device.device, "total_bytes": device.total}
        row |= {"weights_bytes": device.weights_total + device.draft, "kv_bytes": device.kv}
        row |= {"overhead_bytes": device.activations + device.overhead, "free_bytes": device.free}
        row |= {"by_component": device.weights, "draft_bytes": device.draft, "activations_bytes": device.activations}
        devices.append(row)
    return {
        **codec.pick_fields(chosen, PLAN_KEYS),
        "memory": {
            "per_device": devices,
            "kv_tokens": memory.kv_tokens,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "requests_of_context": memory.held_sequences(chosen.recipe.context, chosen.recipe.context),
            "fits": memory.fits,
        },
        "known_divergence": list(known_divergences(chosen.recipe.model)),
    }
