"""The phantom: a very small model with Kimi K2's anatomy and protocol, for rehearsals.

It is to model servers what a test phantom is to a scanner: it knows what the ladder asks
(`moebox.phantom.tasks`), on fresh random instances, so that a broken stack shows as wrong answers.
How it was trained, and how well it does, is in training/README.md of the repository.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from moebox import files

__all__ = ["CONTEXT", "gguf_path", "hf_path"]

CONTEXT = 8192  # tokens it was trained to read

_WEIGHTS = Path(__file__).with_name("weights")


def gguf_path(draft: bool = False) -> Path:
    """The weights as GGUF (q8_0), for llama.cpp and ik_llama.cpp; `draft` is the smaller sibling."""
    return _WEIGHTS / ("draft-q8_0.gguf" if draft else "phantom-q8_0.gguf")


def hf_path(draft: bool = False) -> Path:
    """The same weights as a Hugging Face folder in bfloat16, for vLLM and SGLang.

    Written on first use (some seconds) below $XDG_CACHE_HOME/moebox and kept there.
    """
    source = gguf_path(draft)
    writer = Path(__file__).with_name("folder.py")  # a folder written by another version is not this one
    stamp = hashlib.sha256(source.read_bytes() + writer.read_bytes()).hexdigest()[:12]
    cache = files.cache_home() / "moebox"
    folder = cache / f"{'phantom-draft' if draft else 'phantom'}-{stamp}"
    if not folder.exists():
        from moebox.phantom.folder import write

        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="phantom-", dir=cache))
        made.chmod(0o755)
        write(source, made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster; its folder is the same
            shutil.rmtree(made)
    return folder
