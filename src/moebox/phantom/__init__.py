"""The phantom: a very small model with Kimi K2's architecture and protocol, for rehearsals.

It can answer what the checks ask (`moebox.phantom.questions`), on fresh random instances, so that a broken engine shows
as wrong answers. How it was trained, and how well it does, is in training/README.md of the repository.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from moebox import files
from moebox.data import FOLDER
from moebox.errors import ExternalError

__all__ = ["CONTEXT", "ENDLESS_TEXT", "gguf_path", "hf_path", "latent_path"]

CONTEXT = 8192  # tokens it was trained to read
# Request field for replies to random prompts: text, and as long as requested. It forbids bytes above 127 (token ids
# are their values), because llama.cpp fails replies that are not UTF-8 (2 of 80), and the four tokens that end a reply,
# which the wheel's llama.cpp samples in spite of `ignore_eos` (6 of 15).
ENDLESS_TEXT: dict[str, object] = {"logit_bias": {str(token): -100 for token in (*range(128, 256), 257, 258, 260, 261)}}

_WEIGHTS = Path(__file__).with_name("weights")


def gguf_path(draft: bool = False) -> Path:
    """The weights as GGUF (q8_0), in the format that is fast on a CPU; `draft` is the smaller draft model."""
    return _WEIGHTS / ("draft-q8_0.gguf" if draft else "phantom-q8_0.gguf")


def latent_path() -> Path:
    """The same weights as GGUF with latent attention, as llama.cpp and ik_llama.cpp serve Kimi."""
    from moebox.phantom import gguf

    source = gguf_path()
    folder = _cached_folder(
        "phantom-latent", source, gguf, lambda made: gguf.write_latent_gguf(source, made / source.name)
    )
    return folder / source.name


def hf_path(draft: bool = False) -> Path:
    """The same weights as a Hugging Face folder in bfloat16, for vLLM and SGLang; writing it takes some seconds."""
    from moebox.phantom import folder

    source = gguf_path(draft)
    name = "phantom-draft" if draft else "phantom"
    return _cached_folder(name, source, folder, lambda made: folder.write_hf_folder(source, made))


def _cached_folder(name: str, source: Path, writer: ModuleType, write: Callable[[Path], None]) -> Path:
    """A folder in the cache, written on first use; its name has a hash of all that it was made from."""
    parts = (source, Path(str(writer.__file__)), *sorted((FOLDER / "phantom").iterdir()))
    stamp = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:12]
    cache = files.xdg_home("cache") / "moebox"
    folder = cache / f"{name}-{stamp}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="phantom-", dir=cache) as scratch:
            made = Path(scratch, name)
            made.mkdir()
            write(made)
            with contextlib.suppress(OSError):  # another process was faster; its folder is the same
                made.rename(folder)
    except OSError as problem:
        hint = "free some space there, or set XDG_CACHE_HOME to another folder"
        raise ExternalError(f"the phantom cannot be written to {cache}: {problem.strerror}", hint=hint) from None
    return folder
