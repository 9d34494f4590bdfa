"""The toy's command line: three flags."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, field_arguments, flag_arguments, merge_arguments
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.reading import Reading

FIELDS = {
    "--name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--split": "parallel.tp",
    "--length": "context",
    "--slots": "max_seqs",
    "--share": "memory_utilization",
}
READS = FIELDS
VARIABLES = {"--name": "SERVED_MODEL_NAME", "--length": "MAX_MODEL_LEN", "--port": "PORT"}


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry."""
    recipe = deployment.recipe
    known = flag_catalogue("toy", recipe.engine_version)
    out = [("--model", deployment.weights_path), *field_arguments(recipe, FIELDS, known, host=host)]
    if recipe.kv != "auto":
        out.append(("--cache", recipe.kv))
    return merge_arguments(out, flag_arguments(recipe.flags, known), known)


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """It has no drafts."""
    return []


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it here."""
    return python_entry(recipe, program=("toy-serve",), module=("-m", "toy_engine.server"))


def environment(deployment: Deployment) -> dict[str, str]:
    """The recipe's own."""
    return dict(deployment.recipe.env)


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """It reads TOY_API_KEY."""
    return argv


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """--cache is the recipe's kv."""
    if name != "--cache":
        return False
    reading.put("kv", word[-1])
    return True


def finished(names: set[str], reading: Reading) -> None:
    """Nothing follows."""
