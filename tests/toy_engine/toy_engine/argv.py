"""The toy's command line: three flags."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import Node, field_words, flag_words, merge
from moebox.engines.assemble import entry_words
from moebox.engines.flags import Word, catalogue
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


def words(deployment: Deployment, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry."""
    recipe = deployment.recipe
    known = catalogue("toy", recipe.engine_version)
    out = [("--model", deployment.weights), *field_words(recipe, FIELDS, known, host=host)]
    if recipe.kv != "auto":
        out.append(("--cache", recipe.kv))
    return merge(out, flag_words(recipe.flags, known), known)


def speculation(recipe: Recipe) -> list[Word]:
    """It has no drafts."""
    return []


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it here."""
    return entry_words(recipe, program=("toy-serve",), module=("-m", "toy_engine.server"))


def environment(deployment: Deployment) -> dict[str, str]:
    """The recipe's own."""
    return dict(deployment.recipe.env)


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """It reads TOY_API_KEY."""
    return argv


def understood(word: Word, name: str, reading: Reading) -> bool:
    """--cache is the recipe's kv."""
    if name != "--cache":
        return False
    reading.put("kv", word[-1])
    return True


def finished(names: set[str], reading: Reading) -> None:
    """Nothing follows."""
