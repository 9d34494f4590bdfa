"""The phantom: a very small model with Kimi K2's anatomy and protocol, for rehearsals.

It is to model servers what a test phantom is to a scanner: it knows what the ladder asks
(`moebox.phantom.tasks`), on fresh random instances, so that a broken stack shows as wrong answers.
How it was trained, and how well it does, is in training/README.md of the repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from moebox import files
from moebox.errors import ExternalError

__all__ = ["CONTEXT", "gguf_path", "hf_path", "latent_path"]

CONTEXT = 8192  # tokens it was trained to read

_WEIGHTS = Path(__file__).with_name("weights")


def gguf_path(draft: bool = False) -> Path:
    """The weights as GGUF (q8_0), in the form that is quick on a CPU; `draft` is the smaller sibling."""
    return _WEIGHTS / ("draft-q8_0.gguf" if draft else "phantom-q8_0.gguf")


def latent_path() -> Path:
    """The same weights as GGUF with latent attention, as llama.cpp and ik_llama.cpp serve Kimi."""
    from moebox.phantom import latent

    name = gguf_path().name
    return (
        _kept(
            "phantom-latent", gguf_path(), latent, lambda folder: latent.write_latent_gguf(gguf_path(), folder / name)
        )
        / name
    )


def hf_path(draft: bool = False) -> Path:
    """The same weights as a Hugging Face folder in bfloat16, for vLLM and SGLang; it takes some seconds to write."""
    from moebox.phantom import folder

    source = gguf_path(draft)
    name = "phantom-draft" if draft else "phantom"
    return _kept(name, source, folder, lambda made: folder.write_hf_folder(source, made))


def _kept(name: str, source: Path, writer: ModuleType, write: Callable[[Path], None]) -> Path:
    """A folder written on first use below $XDG_CACHE_HOME/moebox; one that another version wrote is not this one."""
    stamp = hashlib.sha256(source.read_bytes() + Path(str(writer.__file__)).read_bytes()).hexdigest()[:12]
    cache = files.cache_home() / "moebox"
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
        hint = "make room there, or name another folder in XDG_CACHE_HOME"
        raise ExternalError(f"the phantom cannot be written to {cache}: {problem.strerror}", hint=hint) from None
    return folder
