"""Parameters of a model's vision tower, from vision_config."""

from math import prod

from moebox.checkpoint.fields import Config, ConfigFields
from moebox.errors import BadInput


def vision_parameters(config: Config, where: str) -> int:
    """Kimi's MoonViT or Qwen's ViT with the projector; 0 without a tower, or with one of a make we do not know."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    fields = ConfigFields(vision, f"{where}: vision_config")
    if "vt_hidden_size" in vision:
        return _moonvit(fields)
    return _qwen(fields) if "out_hidden_size" in vision else 0


def _moonvit(fields: ConfigFields) -> int:
    hidden, mlp = fields.integer("vt_hidden_size", least=1), fields.integer("vt_intermediate_size", least=1)
    layers, patch = fields.integer("vt_num_hidden_layers", least=1), fields.integer("patch_size", least=1)
    text = fields.integer("text_hidden_size", least=1)
    kernel = fields.values.get("merge_kernel_size") or [2, 2]
    if not isinstance(kernel, list) or not all(isinstance(side, int) and 0 < side < 100 for side in kernel):
        raise BadInput(f"{fields.where}: merge_kernel_size must be a list of small whole numbers")
    merged = hidden * prod(kernel)
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * mlp + hidden + mlp + 4 * hidden
    position = (
        fields.integer("init_pos_emb_height", default=64) * fields.integer("init_pos_emb_width", default=64) * hidden
    )
    tower = layers * block + position + 3 * patch * patch * hidden + hidden + 2 * hidden
    projector = merged * merged + merged + merged * text + text + 2 * hidden
    return tower + projector


def _qwen(fields: ConfigFields) -> int:
    """Qwen3-VL's tower: patches of two frames, learned positions, blocks with biases, one patch merger."""
    hidden, mlp = fields.integer("hidden_size", least=1), fields.integer("intermediate_size", least=1)
    depth, patch = fields.integer("depth", least=1), fields.integer("patch_size", least=1)
    out, merge = fields.integer("out_hidden_size", least=1), fields.integer("spatial_merge_size", default=2)
    frames = fields.integer("temporal_patch_size", default=2)
    block = 4 * hidden * hidden + 4 * hidden + 2 * hidden * mlp + hidden + mlp + 4 * hidden
    position = fields.integer("num_position_embeddings", default=0) * hidden
    merged = hidden * merge * merge
    merger = merged * merged + merged + merged * out + out + 2 * hidden
    return depth * block + position + 3 * patch * patch * frames * hidden + hidden + merger
