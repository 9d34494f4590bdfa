"""The toy: only what every engine must have."""

from moebox.core.deployment import Deployment
from moebox.core.plan import DeviceMemory, Memory
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, field_arguments
from moebox.engines.assemble import python_entry
from moebox.engines.engine import Engine
from moebox.engines.flags import Argument, flag_catalogue
from moebox.sizing.constants import visible_bytes
from moebox.sizing.kv import token_bytes
from toy_engine.traits import TRAITS

FIELDS = {
    "--name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--split": "parallel.tp",
    "--length": "context",
    "--slots": "max_seqs",
    "--share": "memory_utilization",
}
VARIABLES = {"--name": "SERVED_MODEL_NAME", "--length": "MAX_MODEL_LEN", "--port": "PORT"}


class ToyEngine(Engine):
    """Divides weights evenly; the rest of the memory is cache."""

    traits = TRAITS
    fields = FIELDS
    variables = VARIABLES

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        """Command-line arguments after the entry."""
        recipe = deployment.recipe
        known = flag_catalogue("toy", recipe.engine_version)
        out = [("--model", deployment.weights_path), *field_arguments(recipe, FIELDS, known, host=host)]
        if recipe.kv != "auto":
            out.append(("--cache", recipe.kv))
        return add_recipe_flags(out, recipe.flags, known)

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        """The command that starts it here."""
        return python_entry(recipe, program=("toy-serve",), module=("-m", "toy_engine.server"))

    def memory_budget(self, deployment: Deployment) -> Memory:
        """Every GPU's bytes."""
        box, model, checkpoint, recipe = deployment.facts
        tp = recipe.parallel.tp
        token = token_bytes(model, recipe)
        devices, least = [], 2**62
        for place, gpu in enumerate(box.gpus[:tp]):
            weights = {name: size // tp for name, size in checkpoint.bytes_by_component.items()}
            utilized = round(visible_bytes(gpu) * (recipe.memory_utilization or 0.9))
            left = utilized - sum(weights.values())
            least = min(least, left)
            kv = max(0, left)
            rest = gpu.memory - sum(weights.values()) - kv
            devices.append(DeviceMemory(device=f"gpu{place}", total=gpu.memory, weights=weights, kv=kv, overhead=rest))
        tokens = max(0, least) // token
        return Memory(
            devices=tuple(devices),
            kv_tokens=tokens,
            kv_bytes_per_token=token,
            fits=tokens >= recipe.context and tp <= len(box.gpus),
            shortfall=max(0, -least),
        )


ENGINE = ToyEngine()
