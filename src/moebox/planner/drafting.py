"""How a model's next tokens are drafted, and with which draft model."""

from moebox.core.model import Model
from moebox.core.recipe import Speculate
from moebox.errors import BadInput


def default_draft_method(model: Model) -> str:
    """How a model's next tokens are best drafted: a model trained for it, its own layers, or not at all."""
    if model.drafts:
        return "eagle3"
    return "mtp" if model.mtp_layers else "none"


def make_draft(model: Model, method: str, preset: str = "") -> Speculate:
    """What a recipe says to draft by `method`; BadInput where the model has nothing for it."""
    if method == "eagle3":
        return Speculate(method=method, draft=_trained(model, preset), tokens=3)
    if method == "mtp" and not model.mtp_layers:
        raise BadInput(f"{model.title} has no prediction layer (MTP) to draft with", hint="--speculate none")
    return Speculate(method=method, tokens=1)


def _trained(model: Model, preset: str) -> str:
    """The EAGLE3 draft that suits the image: those with latent attention are the patched one's."""
    if not model.drafts:
        own = "--speculate mtp: the model brings its own" if model.mtp_layers else "--speculate none"
        raise BadInput(f"no EAGLE3 draft of {model.title} is known", hint=own)
    latent = preset == "community"
    return min(model.drafts, key=lambda name: ("mla" in name) != latent).split(" ")[0]
