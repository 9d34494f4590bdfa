"""A plan followed through the chain: recipe, TOML, launch, launch parsed back, memory, speed, refusals, data."""

import dataclasses
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.core import catalogue, presets
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Model
from moebox.core.plan import Plan
from moebox.core.recipe import Hybrid, Recipe
from moebox.errors import MoeboxError
from moebox.flows.walk import list_steps, starting_recipe, with_setting
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from tests.chain.parse_back import parse_command

BOXES = (
    "8x-rtx-pro-6000-server",
    "8x-b200",
    "8x-b300",
    "8x-h200",
    "4x-h100",
    "8x-a100-80gb",
    "8x-mi300x",
    "2x-rtx-pro-6000-max-q",
    "1x-rtx-5090",
    "4x-l40s",
)
RAM = {"ram": 1024 * 2**30, "ram_bandwidth": 614_400_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request to the planner."""

    model: str
    box: str
    constraints: Constraints

    @property
    def title(self) -> str:
        """A short name for the test."""
        given = {
            field.name: getattr(self.constraints, field.name)
            for field in dataclasses.fields(self.constraints)
            if getattr(self.constraints, field.name) != field.default
        }
        return f"{self.model}/{self.box}/" + ",".join(f"{name}={value}" for name, value in given.items())


def box_of(name: str) -> Box:
    """Return COUNTxGPU with a terabyte of RAM."""
    count, _, gpu = name.partition("x-")
    return Box(name=name, gpus=(catalogue.find_gpu(gpu),) * int(count), **RAM)  # type: ignore[arg-type]


def launch_settings(recipe: Recipe) -> Recipe:
    """Return the recipe without what no command line has: its name, its model's, its climb."""
    hybrid = recipe.hybrid
    if hybrid is not None and not any(hybrid.experts):
        hybrid = dataclasses.replace(hybrid, experts=(), device=Hybrid().device)  # no placement rule names a GPU
    blank = {"name": "x", "model": "x", "climb": type(recipe.climb)(), "format": 1, "engine_version": "", "env": {}}
    return dataclasses.replace(recipe, **blank, hybrid=hybrid, runtime=dataclasses.replace(recipe.runtime, preset=""))


def read_back(deployment: Deployment) -> Recipe:
    """Return the launch's command line parsed to a recipe."""
    recipe = deployment.recipe
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch)
    return parse_command(recipe.engine, argv, version=recipe.engine_version)


def follow(case: Case, plan: Plan, recipe: Recipe, box: Box, model: Model) -> Iterator[str]:
    """Yield what is wrong with one planned recipe, a line each."""
    again = codec.decode(Recipe, tomllib.loads(codec.to_toml(recipe)), where="toml")
    if again != recipe:
        yield "TOML and back is another recipe"
    deployment = deploy(again, box)
    engines.check_recipe(deployment)
    yield from differences(launch_settings(recipe), parsed_settings(deployment))
    yield from named(deployment)
    yield from excluded(case, deployment)
    yield from climbed(deployment)
    if recipe == plan.recipe:
        yield from agreeing(plan, deployment)


def parsed_settings(deployment: Deployment) -> Recipe:
    """Return the launch parsed back, its weights by the name in the recipe."""
    back = read_back(deployment)
    recipe = deployment.recipe
    weights = {deployment.weights_path, f"{deployment.checkpoint.repo}:{deployment.checkpoint.name}"}
    checkpoint = recipe.checkpoint if back.checkpoint in weights else back.checkpoint
    same = dataclasses.replace(back, checkpoint=checkpoint)
    # A preset adds flags of its own; without one every flag of the launch is the recipe's.
    flags = {name: value for name, value in back.flags.items() if name in recipe.flags or not recipe.runtime.preset}
    runtime = dataclasses.replace(recipe.runtime, preset="") if engines.runs_in_container(recipe) else back.runtime
    omitted = {"vision": recipe.vision} if not deployment.has_vision_tower or deployment.engine.offloads_experts else {}
    if recipe.trust_remote_code != back.trust_remote_code and not deployment.engine.needs_parser_flags:
        omitted["trust_remote_code"] = recipe.trust_remote_code
    return launch_settings(dataclasses.replace(same, flags=flags, runtime=runtime, **omitted))


def differences(ours: Recipe, theirs: Recipe) -> Iterator[str]:
    """Yield fields that differ between the launch and the recipe."""
    for field in dataclasses.fields(Recipe):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name == "hybrid":
            a, b = a or Hybrid(), b or Hybrid()
        if a != b:
            yield f"{field.name}: the recipe has {a!r}, the launch {b!r}"


def named(deployment: Deployment) -> Iterator[str]:
    """Yield files and images that are not in the data."""
    recipe, checkpoint = deployment.recipe, deployment.checkpoint
    known = catalogue.published_checkpoints(deployment.model.name)
    if not any((checkpoint.repo, checkpoint.file) == (row.repo, row.file) for row in known):
        yield f"no row of data has {checkpoint.repo}/{checkpoint.file}"
    if recipe.runtime.preset and recipe.runtime.preset not in presets.preset_names():
        yield f"no preset {recipe.runtime.preset}"
    image = engines.build_launch(deployment).image
    if image and image not in (recipe.runtime.image, presets.load_preset(recipe.runtime.preset).image):
        yield f"image {image} is unknown"


def excluded(case: Case, deployment: Deployment) -> Iterator[str]:
    """Yield what the engine's traits exclude."""
    recipe, engine = deployment.recipe, deployment.engine
    reason = engine.hardware_problem(deployment.gpu_kinds, deployment.known_model)
    if reason and not case.constraints.engine:
        yield f"planned although {reason}"
    if recipe.kv not in engine.kv:
        yield f"kv {recipe.kv} is none of {engine.name}'s"
    parallel = recipe.parallel
    cut = [name for name in ("tp", "pp", "dp", "dcp", "nodes") if getattr(parallel, name) > 1]
    cut += ["ep"] if parallel.ep else []
    if not set(cut) <= engine.shards:
        yield f"{engine.name} does not divide by {cut}"
    if recipe.speculate and recipe.speculate.method not in engine.draft_methods:
        yield f"{engine.name} has no {recipe.speculate.method}"
    if deployment.checkpoint.format not in engine.formats:
        yield f"{engine.name} does not read {deployment.checkpoint.format}"
    if recipe.listen.port > engine.last_port:
        yield f"port {recipe.listen.port} is too high"


def climbed(deployment: Deployment) -> Iterator[str]:
    """Yield where `moebox climb` would not begin at the plan, or try what is always refused."""
    recipe, model = deployment.recipe, deployment.model
    if starting_recipe(recipe) != dataclasses.replace(
        recipe, speculate=None if recipe.climb.speculate else recipe.speculate
    ):
        yield "a climb begins with another recipe"
    for step in list_steps(recipe)[1:]:
        if step.path == "context" and not recipe.context < step.value <= model.context:
            yield f"a climb tries {step.change}, and the model has {model.context}"
        if step.path == "speculate" and recipe.speculate is None:
            draft = with_setting(recipe, step.path, step.value).speculate
            if (
                draft is None
                or step.value not in deployment.engine.draft_methods
                or (step.value == "eagle3") != bool(draft.draft)
            ):
                yield f"a climb tries {step.change} with {draft}"


def agreeing(plan: Plan, deployment: Deployment) -> Iterator[str]:
    """Yield differences of memory, speed and refusals between the deployment and the plan."""
    if engines.memory_budget(deployment) != plan.memory:
        yield "another memory than the plan's"
    warned = {warning.text for warning in plan.warnings}
    missing = [warning.text for warning in engines.find_refusals(deployment) if warning.text not in warned]
    if missing:
        yield f"the plan has no warning: {missing[0]}"
    row = plan.forecast[0]
    rate = Speed.for_deployment(deployment).decode_tok_s(row.concurrency, row.context)
    if round(rate, 2) != row.decode_tok_s:
        yield f"the plan forecasts {row.decode_tok_s}, the deployment {rate:.2f}"


def problems(case: Case) -> list[str]:
    """Return everything wrong with the plan of a case and its runners-up; nothing if nothing fits."""
    box, model = box_of(case.box), catalogue.find_model(case.model)
    try:
        plan = choose_plan(box, model, catalogue.published_checkpoints(model.name), case.constraints)
    except MoeboxError:
        return []
    recipes = [plan.recipe, *(other.recipe for other in plan.alternatives)]
    return [
        f"{case.title}: {recipe.engine} {recipe.checkpoint}: {text}"
        for recipe in recipes
        for text in follow(case, plan, recipe, box, model)
    ]


def launches(cases: Iterable[Case], engine: str) -> list[list[str]]:
    """Return command lines of `engine` among the plans of `cases` and their runners-up, without the entry."""
    lines: list[list[str]] = []
    for case in cases:
        box, model = box_of(case.box), catalogue.find_model(case.model)
        try:
            plan = choose_plan(box, model, catalogue.published_checkpoints(model.name), case.constraints)
        except MoeboxError:
            continue
        recipes = [plan.recipe, *(other.recipe for other in plan.alternatives)]
        for recipe in recipes:
            if recipe.engine == engine:
                words = engines.load_engine(engine).arguments(deploy(recipe, box))
                lines.append([part for word in words for part in word])
    return lines
