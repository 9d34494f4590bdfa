"""The phantom's GGUF in the form that Kimi's have today: latent attention, keys and values apart.

The file that comes with moebox has them in one matrix, as GGUFs had before llama.cpp knew latent attention. llama.cpp
then caches and reads whole heads, which on a CPU is twice to four times as fast for so few of them; but it is not what
it does with Kimi, so rehearsals of real servers take this form.
"""

from array import array
from pathlib import Path

from moebox.gguf_file import F16, WeightEntry, align_up, header_bytes
from moebox.phantom.gguf import PhantomGguf

_ATTENTION = "deepseek2.attention."


def write_latent_gguf(source: Path, path: Path) -> None:
    """The weights of `source` in a file of their own."""
    model = PhantomGguf(source)
    key, value = (model.meta[f"{_ATTENTION}{name}_length"] for name in ("key", "value"))
    latent = model.meta[f"{_ATTENTION}kv_lora_rank"]
    keys = {"key_length_mla": key, "value_length_mla": value, "head_count_kv": 1, "value_length": latent}
    keys["key_length"] = latent + model.meta["deepseek2.rope.dimension_count"]
    places, contents = [], []
    for name, tensor in model.tensors.items():
        parts = {name: (tensor.shape, tensor.kind, model.tensor_bytes(name))}
        if name.endswith("attn_kv_b.weight"):
            parts = _apart(model, name, value)
        for part, (shape, kind, content) in parts.items():
            places.append(WeightEntry(name=part, shape=tuple(reversed(shape)), type=kind, bytes=len(content)))
            contents.append(content)
    with path.open("wb") as file:
        file.write(header_bytes(model.meta | {f"{_ATTENTION}{name}": size for name, size in keys.items()}, places))
        for content in contents:
            file.write(content.ljust(align_up(len(content)), b"\0"))


def _apart(model: PhantomGguf, name: str, value: int) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """llama.cpp wants the keys' half transposed, head by head."""
    rows, latent = model.tensors[name].shape
    heads = model.meta[f"{_ATTENTION}head_count"]
    nope = rows // heads - value
    numbers, keys, values = array("H", model.tensor_bytes(name)), array("H"), array("H")
    for head in range(heads):
        start = head * (nope + value) * latent
        block = numbers[start : start + nope * latent]
        for column in range(latent):
            keys += block[column::latent]
        values += numbers[start + nope * latent : start + (nope + value) * latent]
    return {
        name.replace("attn_kv_b", "attn_k_b"): ((heads, latent, nope), F16, keys.tobytes()),
        name.replace("attn_kv_b", "attn_v_b"): ((heads, value, latent), F16, values.tobytes()),
    }
