"""What `moebox climb` tries after a plan: longer contexts than the plan's, then the model's own way to draft."""

from moebox.core.model import Model
from moebox.core.recipe import Climb
from moebox.core.traits import Traits
from moebox.planner.drafting import default_draft_method

USUAL_CONTEXTS = (4096, 8192, 16384, 32768, 65536, 98304, 131072, 196608, 262144)
MAX_LONGER_CONTEXTS = 3  # longer contexts that are tried: each is a restart


def climb_table(model: Model, context: int, traits: Traits, method: str | None) -> Climb:
    """No context beyond the model's, and no draft that was not asked for or that the engine cannot use.

    Drafts beside experts in RAM are not proven, so engines that keep some there try none.
    """
    longer = [length for length in USUAL_CONTEXTS if context < length <= model.context][:MAX_LONGER_CONTEXTS]
    method = method or default_draft_method(model)
    drafts = ("none", method) if traits.is_gpu_only and method in traits.draft_methods else ()
    return Climb(contexts=(context, *longer), speculate=drafts)


def describe_climb(climb: Climb) -> str:
    """What it tries, in a few words; "" where there is nothing to try."""
    walks = "walks context up" if len(climb.contexts) > 1 else ""
    drafts = f"tries {climb.speculate[-1]} drafts" if climb.speculate else ""
    tried = " and then ".join(filter(None, (walks, drafts)))
    return f"`moebox climb` {tried}" if tried else ""
