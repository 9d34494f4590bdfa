"""Rehearse a launch before a 600 GB download: boot the engine with a few layers and dummy weights, and prompt it.

Flags, kernels, shared memory or NCCL that fail at the start or at the first long prompt fail here as well. The result
lists what a rehearsal cannot show.
"""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moebox import checkpoint, http
from moebox.core import registry
from moebox.core.deployment import Deployment
from moebox.core.engine_facts import EngineFacts
from moebox.core.event import RehearsalStep, RehearseFinished, RehearseStarted
from moebox.core.model import Model
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import Hybrid, Recipe
from moebox.core.verdict import CheckResults
from moebox.engines.engine import find_refusals, load_engine
from moebox.errors import AnswerIsNo, MoeboxError, Unsupported, refuse_if
from moebox.loose import get_number
from moebox.serve.dummy import MOST_KINDS, cut_model, layers_of_each_kind, write_gguf
from moebox.serve.facts import CHAT_TIMEOUT_S
from moebox.serve.session import EngineSession, engine_session
from moebox.sizing.layout import indivisible_layout
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import OUT_OF_TIME, run_checks

BEYOND = 64  # tokens beyond a prefill step, so that a prompt does not fit into one step
DECODE = 16
CHECK_CONTEXT, CHECK_TRIALS = 1024, 4  # longest text of the checks in tokens, and trials: a minute on a laptop
WORD = "word "  # one or two tokens in most vocabularies, five in one of bytes; the reply has the exact count
ALWAYS = (
    "loading and downloading the real weights is not rehearsed",
    "memory is that of the kept layers; `moebox plan` shows the total",
    "speed and answers mean nothing with dummy weights",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    layers: int
    steps: tuple[RehearsalStep, ...]
    facts: EngineFacts
    not_rehearsed: tuple[str, ...]

    @property
    def summary(self) -> str:
        return f"booted with {self.layers} layers, " + ", ".join(step.detail for step in self.steps[1:])


def rehearse(deployment: Deployment, run: Run, *, layers: int = 0, phantom: bool = False, **how: Any) -> Rehearsal:
    """Boot, prompt beyond one prefill step, decode, stop. Raise if any of it fails; `how` is for `engine_session`."""
    dummy, recipe, steps = run.path / "rehearsal.gguf", deployment.recipe, list[RehearsalStep]()
    began = time.monotonic()

    def add_step(name: str, detail: str) -> None:
        nonlocal began
        seconds, began = time.monotonic() - began, time.monotonic()
        steps.append(RehearsalStep(name=name, detail=detail, seconds=seconds))

    try:
        small, kept, notes = with_phantom_weights(recipe) if phantom else reduce_recipe(deployment, dummy, layers)
        run.add_event(RehearseStarted(recipe=recipe.name, layers=kept, phantom=phantom))
        as_real = with_weights(deployment, small)  # its flags are those of the real model
        with engine_session(as_real, run, rehearsal=True, **how) as session:
            add_step("boot", "booted and answered a chat")
            add_step("long prompt", rehearse_long_prompt(session, small))
            send_prompt(session, "Count to twenty:", "while decoding", tokens=4 * DECODE)
            add_step("decode", f"decoded up to {4 * DECODE} tokens")
            if phantom:  # it can pass the checks: rope, cache, routing, template and parsers of this launch
                context = min(small.context or CHECK_CONTEXT, CHECK_CONTEXT)
                options = VerifyOptions(context=context, trials=CHECK_TRIALS, parallel=CHECK_TRIALS, depths=(0.5,))
                checks = run_checks(session.endpoint, options, run=run)
                if problem := first_unexpected_failure(checks):
                    text = f"the phantom answers wrongly on {recipe.engine} ({problem})"
                    raise AnswerIsNo(text, hint=f"evidence in {run.path}")
                add_step("answers", describe_answers(checks, recipe.engine))
    finally:
        dummy.unlink(missing_ok=True)
    steps.append(RehearsalStep(name="down", detail="stopped", seconds=0.0))
    run.add_event(RehearseFinished(steps=tuple(steps), not_rehearsed=notes))
    return Rehearsal(layers=kept, steps=tuple(steps), facts=session.facts, not_rehearsed=notes)


def with_weights(deployment: Deployment, recipe: Recipe) -> Deployment:
    form = deployment.known_checkpoint
    if form is not None and recipe.checkpoint != deployment.recipe.checkpoint:
        deployment = replace(deployment, known_checkpoint=replace(form, path=recipe.checkpoint))
    return deployment.with_recipe(recipe)


def reduce_recipe(deployment: Deployment, dummy: Path, layers: int) -> tuple[Recipe, int, tuple[str, ...]]:
    """The recipe with few layers and dummy weights, the number of layers, and notes on what is not rehearsed."""
    recipe = deployment.recipe
    try:
        model = deployment.model
    except MoeboxError as problem:
        raise Unsupported(f"cannot rehearse {recipe.name}: {problem.message}", hint=problem.hint) from None
    kept = layers or fewest_layers(model, recipe, layers_of_each_kind(deployment))
    refuse_if(kept > model.layers or kept < 1, f"--layers {kept}: {model.title} has {model.layers}")
    notes = [f"{model.layers - kept} of {model.layers} layers are left out", *ALWAYS]
    if recipe.speculate:
        notes.append("speculative decoding: its draft reads layers that are left out")
    if recipe.parallel.nodes > 1:
        raise Unsupported("a launch over several nodes cannot be rehearsed from one of them")
    small = with_dummy_weights(deployment, dummy, kept, keep_expert_layers(recipe.hybrid, kept))
    small = replace(small, env={**load_engine(recipe.engine).short_warmup, **recipe.env})
    if small.checkpoint == str(dummy):
        if not model.mla:
            notes.append("biases and head norms of this architecture: the generated GGUF has none")
        size = dummy.stat().st_size / 1e9
        notes.append(f"the real quantisation: the generated GGUF is q4_0 ({size:.1f} GB, sparse)")
    else:
        known, problems = map(find_refusals, (deployment, deployment.with_recipe(small)))
        new = [each.text for each in problems if each.severity == "fatal" and each not in known]
        if new:
            raise Unsupported(f"cannot rehearse {recipe.name}: {new[0]}")
    return small, kept, tuple(notes)


def with_dummy_weights(deployment: Deployment, dummy: Path, layers: int, hybrid: Hybrid | None, **gguf: Any) -> Recipe:
    """The recipe on a free port with generated weights of few layers, without a draft.

    For engines that read GGUF, `dummy` is written with the options `gguf`, and their experts lie as in `hybrid`.
    """
    recipe = deployment.recipe
    small = replace(recipe.with_port(0), speculate=None)
    if reads_gguf(recipe):
        write_gguf(dummy, deployment.model, layers=layers, **gguf)
        return replace(small, checkpoint=str(dummy), hybrid=hybrid)
    flags = load_engine(recipe.engine).dummy_weight_flags(deployment, layers)
    if not flags:
        raise Unsupported(f"moebox does not know how {deployment.engine.title} starts without weights")
    weights = cut_model(deployment, layers) or small.checkpoint
    return replace(small, checkpoint=weights, flags={**recipe.flags, **flags})


def reads_gguf(recipe: Recipe) -> bool:
    """Whether the recipe's engine reads GGUF, so that a file is generated for it."""
    return "gguf" in registry.engine_traits(recipe.engine).formats


def fewest_layers(model: Model, recipe: Recipe, listed: int = 0) -> int:
    """One layer of each kind, and at least one per pipeline stage; `listed`: until the config has listed each kind."""
    counts = [row.count for row in model.others]
    rarest = min(filter(None, (*counts, model.layers - sum(counts))), default=model.layers)
    listed = listed or min(MOST_KINDS, math.ceil(model.layers / rarest))  # kinds repeat in a pattern
    in_blocks = any(row.feed_forward for row in model.others)
    dense = model.dense_layers + 1 if model.moe and not in_blocks else 1  # the dense ones come first
    return min(model.layers, max(dense, listed, recipe.parallel.pp))


def keep_expert_layers(hybrid: Hybrid | None, kept: int) -> Hybrid | None:
    """The same GPUs with the kept ones of their expert layers."""
    if hybrid is None:
        return None
    experts = tuple(tuple(layer for layer in layers if layer < kept) for layers in hybrid.experts)
    return replace(hybrid, experts=experts)


def with_phantom_weights(recipe: Recipe) -> tuple[Recipe, int, tuple[str, ...]]:
    """The recipe with the phantom's weights: a few trained layers."""
    from moebox import phantom

    if not phantom.gguf_path().exists():
        raise Unsupported("the phantom's weights are not in this installation", hint="rehearse without --phantom")
    weights = phantom.latent_path() if reads_gguf(recipe) else phantom.hf_path()
    model = checkpoint.resolve_model(str(weights))[0]
    if problem := indivisible_layout(recipe.parallel, model):
        raise Unsupported(f"the phantom cannot be divided like the recipe's model: {problem.reason}")
    context = min(recipe.context or phantom.CONTEXT, phantom.CONTEXT)
    small = replace(recipe.with_port(0), model="phantom", checkpoint=str(weights), context=context, speculate=None)
    small = replace(small, hybrid=keep_expert_layers(recipe.hybrid, model.layers))
    notes = ("the real model's shapes: the phantom is far smaller", *ALWAYS[:2], "speed means nothing with the phantom")
    return small, model.layers, notes


def rehearse_long_prompt(session: EngineSession, recipe: Recipe) -> str:
    """Send a prompt that needs more than one prefill step, by the server's own count."""
    block = prefill_chunk(recipe)
    room = (recipe.context or 4096) - DECODE - 1
    wanted = min(block + BEYOND, room)
    words, counted = max(wanted // 8, 8), 0
    while counted < wanted:
        counted = send_prompt(session, WORD * words, f"at a prompt of about {words} words", tokens=DECODE)
        grown = min(round(words * 1.02 * wanted / counted) + 4, words * room // counted)  # never beyond the context
        if words >= grown:
            break
        words = grown
    over = "more" if counted > block else "not more, because the context is too short,"
    return f"answered a prompt of {counted:,} tokens ({over} than a prefill block of {block:,})"


def prefill_chunk(recipe: Recipe) -> int:
    """Prompt tokens per step."""
    own = recipe.hybrid.ubatch if recipe.hybrid else recipe.batched_tokens
    return own or registry.engine_traits(recipe.engine).step_tokens


def describe_answers(checks: CheckResults, engine: str) -> str:
    """How many checks passed, which fail by a known quirk of the engine, and which ran out of time."""
    skipped, failing = checks.checks_with("skip"), [check.name for check in checks.checks_with("fail")]
    late = [check.name for check in skipped if check.reason.startswith(OUT_OF_TIME)]
    tried = len(checks.rungs) - len(skipped)
    count = f"{tried - len(failing)} of {tried}" if failing else f"{tried}"
    detail = f"answered right on {count} check{'s' * (tried != 1)}"
    named = {f"known quirks of {engine}: ": failing, "out of time for ": late}
    notes = "; ".join(text + ", ".join(names) for text, names in named.items() if names)
    return f"{detail} ({notes})" if notes else detail


def send_prompt(session: EngineSession, text: str, when: str, *, tokens: int) -> int:
    """Send a completion. Return the prompt's tokens by the server's count. Raise AnswerIsNo if it fails."""
    endpoint = session.endpoint
    body = {"model": endpoint.model, "prompt": text, "max_tokens": tokens, "temperature": 0}
    reply = http.post_json(f"{endpoint.base_url}/completions", body, headers=endpoint.headers, timeout_s=CHAT_TIMEOUT_S)
    session.read_log()
    counted = int(get_number(reply.json(), "usage.prompt_tokens") or 0) if reply.ok else 0
    if counted <= 0:
        problem = "an answer without usage" if reply.ok else reply.error
        raise AnswerIsNo(f"{session.recipe.engine} failed {when}: {problem}", hint=session.explain_failure())
    return counted
