"""Loud channels in what the phantom caches, as large models have them in their keys (KIVI, arXiv:2402.02750)."""

from __future__ import annotations

import numpy as np

LOUD = 8.0  # a ratio of 64 between loud and quiet: 32 hardly shows in 4 bit, 256 does not yet in 8 (README.md)
BLOCK = 32  # numbers that share a scale in llama.cpp's q4_0 and q8_0 (ggml-common.h)


def gain(width: int) -> np.ndarray:
    """What each number of a latent, or of a head's values, is multiplied with: one in 32 is LOUD, the others quiet."""
    channels = np.full(width, 1 / LOUD, np.float32)
    channels[::BLOCK] = LOUD
    return channels
