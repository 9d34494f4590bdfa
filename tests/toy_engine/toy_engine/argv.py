"""A deployment to the toy's command line: only what every engine must have."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, field_arguments
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue

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


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """Command-line arguments after the entry."""
    recipe = deployment.recipe
    known = flag_catalogue("toy", recipe.engine_version)
    out = [("--model", deployment.weights_path), *field_arguments(recipe, FIELDS, known, host=host)]
    if recipe.kv != "auto":
        out.append(("--cache", recipe.kv))
    return add_recipe_flags(out, recipe.flags, known)


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The command that starts it here."""
    return python_entry(recipe, program=("toy-serve",), module=("-m", "toy_engine.server"))
