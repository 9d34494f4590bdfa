"""A recipe with its model, checkpoint, engine and box.

`checkpoint.deploy` makes one from a recipe, the planner one for each candidate. Everything after `plan` takes it.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from moebox.core import registry
from moebox.core.box import Box, Gpu, gpu_size
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.core.traits import Traits
from moebox.errors import BadInput


@dataclass(frozen=True, eq=False)  # each has an identity of its own, by which answers about it are cached
class Deployment:
    """One engine, one checkpoint of one model, one set of settings, and the box if it is known.

    A recipe may name unknown weights. They can be launched, but `model` and `checkpoint` raise BadInput.
    """

    recipe: Recipe
    known_model: Model | None
    known_checkpoint: Checkpoint | None
    box: Box | None
    notes: tuple[str, ...] = ()  # how the weights were recognised, if that needs an explanation
    running_version: str = ""  # of the installed engine, if that was detected
    image_digest: str = ""  # of the image on this machine, whose tag may name another one later
    engine: Traits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", registry.engine_traits(self.recipe.engine))

    @property
    def model(self) -> Model:
        """The model. Raise BadInput if it is unknown."""
        if self.known_model is None:
            text = f"{self.recipe.name}: neither model {self.recipe.model!r} nor {self.recipe.checkpoint!r} is known"
            raise BadInput(text, hint="name a model of `moebox models`, a folder with config.json or a .gguf file")
        return self.known_model

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint. Raise BadInput if it is unknown."""
        if self.known_checkpoint is None:
            text = f"{self.recipe.name}: no checkpoint of {self.model.name} is called {self.recipe.checkpoint!r}"
            raise BadInput(text, hint=f"`moebox models show {self.model.name}` lists them")
        return self.known_checkpoint

    @property
    def is_known(self) -> bool:
        """Model and checkpoint are known, so that it can be planned and forecast."""
        return self.known_model is not None and self.known_checkpoint is not None

    @property
    def required_box(self) -> Box:
        """The box. Raise BadInput if there is none."""
        if self.box is None:
            raise BadInput(f"{self.recipe.name}: a box is needed to plan it")
        return self.box

    @cached_property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """One GPU of each kind that the recipe uses, the smallest first."""
        if self.box is None:
            return ()
        every = self.box.all_gpus
        used = [every[index] for index in self.recipe.used_gpus(self.box)] or every
        return tuple(sorted({gpu.name: gpu for gpu in used}.values(), key=gpu_size))

    @property
    def smallest_gpu(self) -> Gpu | None:
        """The smallest GPU used, which limits the deployment; None without a GPU or box."""
        return next(iter(self.gpu_kinds), None)

    @property
    def facts(self) -> tuple[Box, Model, Checkpoint, Recipe]:
        """Box, model, checkpoint and recipe. Raise BadInput if one is missing."""
        return self.required_box, self.model, self.checkpoint, self.recipe

    @property
    def weights_path(self) -> str:
        """The weights for the engine to load: a path, or the repository of a catalogue name."""
        found = self.known_checkpoint
        if found is None or found.path:
            return self.recipe.checkpoint if found is None else found.path
        return found.repo or self.recipe.checkpoint

    @property
    def revision(self) -> str:
        """The revision of a Hub repository: a commit, tag or branch; "" is the default branch."""
        own = self.known_checkpoint.revision if self.known_checkpoint else ""
        return str(self.recipe.flags.get("revision", own))

    @property
    def has_vision_tower(self) -> bool:
        return self.known_model is not None and self.known_model.vision > 0

    def with_default_context(self) -> "Deployment":
        """Fill in the model's context length if the recipe leaves it unset."""
        if self.recipe.context or self.known_model is None:
            return self
        return self.with_recipe(replace(self.recipe, context=self.known_model.context))

    def on_box(self, box: Box | None) -> "Deployment":
        return replace(self, box=box)

    def with_recipe(self, recipe: Recipe) -> "Deployment":
        """The same weights with other settings."""
        return replace(self, recipe=recipe)
