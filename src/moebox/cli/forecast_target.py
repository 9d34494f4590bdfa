"""The flags that constrain a plan, and the deployment that a forecast or a twin is of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moebox import codec
from moebox.checkpoint import planned_checkpoint, resolve_model
from moebox.cli.flags import parse_count, parse_token_count
from moebox.core.deployment import Deployment
from moebox.core.plan import Goal, Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.core.setting import split_setting
from moebox.core.workload_file import Simulation
from moebox.engines import check_recipe, memory_budget
from moebox.errors import DoesNotFit, refuse_if
from moebox.flows import recipes
from moebox.planner.choose import choose_plan, search_candidates
from moebox.planner.constraints import CommonConstraints, Constraints, parse_expert_counts, split_constraints
from moebox.planner.fit import Misfit, find_misfit
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_issues, short_cache_warnings, socket_warnings


@dataclass(frozen=True, kw_only=True)
class PlanArgs(CommonConstraints):
    """Settings that the plan must have; they are refused if they are known not to start. The rest is chosen.

    Attributes:
        engine: vllm, sglang, llama.cpp, ik_llama.cpp, ktransformers.
        checkpoint: A checkpoint of the model, such as int4, nvfp4, IQ3_K or Q4_X.
        tp: Tensor parallel size.
        pp: Pipeline stages.
        dp: Data-parallel attention groups of --tp GPUs each; experts are spread over all of them.
        ep: Expert parallel size, over all GPUs of --tp and --dp; 1 slices every expert instead.
        dcp: Decode context parallel size.
        kv: Cache type: fp8, bf16, f16, nvfp4, q8_0 or q4_0.
        memory_utilization: Share of each GPU's memory that the engine may use, such as 0.90.
        speculate: eagle3, mtp, dflash, dspark, ngram or none.
        context: Longest sequence, such as 65536 or 64k; `forecast` takes several.
        concurrency: Concurrent sequences; `forecast` takes several, such as 1,8,32.
        image: stock, or community for the patched vLLM image.
        experts_on_gpu: CPU+GPU engines: expert layers by GPU, from the first layers on the first GPU to the last layers
            on the last, such as 3+3; 0 for none.
        ub: CPU+GPU engines: micro-batch. `forecast` uses 2048 if --experts-on-gpu is given without it.
        mla: ik_llama.cpp: attention mode.
        threads: CPU+GPU engines: threads.
    """

    context: str | None = None
    concurrency: str | None = None
    image: Literal["stock", "community"] | None = None
    experts_on_gpu: str | None = None
    ub: int | None = None

    def constraints(self, *, goal: Goal = "throughput", bold: bool = False) -> Constraints:
        return Constraints(
            **codec.shared_fields(self, CommonConstraints),
            goal=goal,
            bold=bold,
            context=parse_token_count("--context", self.context),
            concurrency=parse_count("--concurrency", self.concurrency),
            image=self.image,
            experts=None if self.experts_on_gpu is None else parse_expert_counts(self.experts_on_gpu),
            ubatch=self.ub,
        )


NO_PLAN_ARGS = PlanArgs()
NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastTarget:
    """A deployment with its memory and its known issues."""

    deployment: Deployment
    memory: Memory
    warnings: tuple[PlanWarning, ...] = ()
    misfit: Misfit | None = None
    accept: float | None = None  # share of draft tokens accepted, if the user knows it

    @property
    def recipe(self) -> Recipe:
        return self.deployment.recipe

    @property
    def speed(self) -> Speed:
        speed = Speed.for_deployment(self.deployment)
        return speed if self.accept is None else speed.with_acceptance(self.accept)

    def refuse_unservable(self) -> None:
        """Raise the error of `moebox up` if it does not fit, or BadInput if no memory is left for a cache."""
        if self.misfit:
            raise self.misfit.error(can_force=False)
        refuse_if(self.memory.kv_tokens < 1, "no memory is left for a cache", hint="`moebox plan` shows the memory")


def find_target(
    name: str,
    box: str | None,
    settings: Sequence[str] = (),
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    ram: str = "",
    ram_bandwidth: str = "",
) -> ForecastTarget:
    """Return the recipe called `name`, on the box that is named or that it was planned for; or the plan for a model.

    `settings` (path=value) change the recipe, or constrain the plan. If constraints fix a model's layout, it is
    returned even if it does not fit.
    """
    memory = {"planned_for.ram": ram, "planned_for.ram_bandwidth": ram_bandwidth}
    others = [text for text in settings if split_setting(text)[0] not in memory]
    memory |= {path: value for path, value in map(split_setting, settings) if path in memory}
    ram, ram_bandwidth = memory.values()
    if recipes.is_recipe(name):
        deployment = recipes.load_deployment(name, others)
        place = recipes.planned_box(deployment.recipe.planned_for, box, ram=ram, ram_bandwidth=ram_bandwidth)
        return _describe_deployment(deployment.on_box(place))
    place = recipes.calibrated_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
    model, checkpoints = resolve_model(name)
    constraints, others = split_constraints(others, constraints)
    try:
        plan = choose_plan(place, model, checkpoints, constraints)
    except DoesNotFit as problem:
        fixed = constraints.checkpoint is not None and (constraints.tp, constraints.experts) != (None, None)
        candidates = search_candidates(place, model, checkpoints, constraints)[0] if fixed else ()
        if not candidates:
            raise problem from None
        deployment = min((each.deployment for each in candidates), key=lambda each: each.recipe.parallel.gpu_count)
    else:
        deployment = Deployment(plan.recipe, model, planned_checkpoint(plan.recipe, checkpoints), place)
        if not others:
            return ForecastTarget(deployment=deployment, memory=plan.memory, warnings=plan.warnings)
    return _describe_deployment(recipes.change_deployment(deployment, others))


def _describe_deployment(deployment: Deployment) -> ForecastTarget:
    """Check a deployment; return it with its memory, its known issues, and why it does not fit if it does not."""
    check_recipe(deployment)
    deployment = deployment.with_default_context()
    warnings, misfit = (*known_issues(deployment), *socket_warnings(deployment)), find_misfit(deployment)
    return ForecastTarget(deployment=deployment, memory=memory_budget(deployment), warnings=warnings, misfit=misfit)


def with_facts(found: ForecastTarget, facts: Simulation, streams: int = 0, length: int = 0) -> ForecastTarget:
    """Take cache and acceptance from the user, who knows better than the planner.

    `streams` requests of `length` run, if any: they decide whether to warn of a short cache, not the longest possible.
    """
    memory, misfit, warnings = found.memory, found.misfit, found.warnings
    if facts.kv_tokens is not None:
        memory, misfit = replace(memory, kv_tokens=facts.kv_tokens), None
    if streams:
        of_context = short_cache_warnings(found.deployment, found.memory, streams, found.recipe.context)
        of_requests = short_cache_warnings(found.deployment, memory, streams, length)
        warnings = (*(warning for warning in warnings if warning not in of_context), *of_requests)
    if facts.accept is not None:
        refuse_if(not 0 <= facts.accept < 1, f"simulation.accept={facts.accept:g} is not a share between 0 and 1")
        refuse_if(found.recipe.speculate is None, "simulation.accept is for a draft", hint="--speculate eagle3")
    return replace(found, memory=memory, misfit=misfit, warnings=warnings, accept=facts.accept)
