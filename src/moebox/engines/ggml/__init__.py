"""What the two llama.cpp servers have in common: flags that keep their meaning in both."""

from moebox.core.recipe import Recipe
from moebox.engines.flags import Word
from moebox.engines.words import checkpoint_of, weights_of

FIELDS: dict[str, str] = {
    "--alias": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--parallel": "max_seqs",
}
HYBRID: dict[str, str] = {
    "-t": "hybrid.threads",
    "-tb": "hybrid.threads_batch",
    "-b": "hybrid.batch",
    "-ub": "hybrid.ubatch",
    "-ngl": "hybrid.gpu_layers",
    "-mla": "hybrid.mla",
    "-amb": "hybrid.attention_buffer",
}
KV = {"f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0"}
ALL_LAYERS = 999  # more than any model has: every layer's dense part on the cards


def model_words(recipe: Recipe, *, hub: str) -> list[Word]:
    """The file to load, or the repository it is fetched from."""
    weights = weights_of(recipe)
    if weights.endswith(".gguf") or weights.startswith(("/", "~", ".", "$")):
        return [("-m", weights)]
    known = checkpoint_of(recipe)
    return [(hub, f"{weights}:{known.quant}" if known and hub == "-hf" else weights)]


def context_words(recipe: Recipe) -> list[Word]:
    """The server divides -c over its slots, so it is asked for as many times the context as there are."""
    return [("-c", str(recipe.context * (recipe.max_seqs or 1)))] if recipe.context else []


def hybrid_words(recipe: Recipe) -> list[Word]:
    """Threads, batches and where the experts go; without a hybrid part everything is on the cards."""
    hybrid = recipe.hybrid
    if hybrid is None:
        return [("-ngl", str(ALL_LAYERS))]
    words: list[Word] = []
    for flag, path in HYBRID.items():
        value = getattr(hybrid, path.removeprefix("hybrid."))
        if value is not None:
            words.append((flag, str(value)))
    return words + [("-ot", rule) for rule in placement(recipe)]


def placement(recipe: Recipe) -> tuple[str, ...]:
    """Rules that say which tensors go where; the first that matches wins, so the cards come before RAM.

    Layers are named one by one: -ncmoe counts from the front in llama.cpp and otherwise in ik_llama.cpp.
    """
    hybrid = recipe.hybrid
    if hybrid is None:
        return ()
    if hybrid.ranges:
        return hybrid.ranges
    cards = [
        rf"blk\.({'|'.join(map(str, layers))})\.ffn_.*_exps=CUDA{card}"
        for card, layers in enumerate(hybrid.experts)
        if layers
    ]
    return (*cards, "exps=CPU")
