"""Loud channels in the phantom's cached latents, as large models have them in their keys (KIVI, arXiv:2402.02750)."""

from __future__ import annotations

import numpy as np

from training.model import Shape

LOUD = 8.0  # a ratio of 64 between loud and quiet: 32 hardly shows in 4 bit, 256 does not yet in 8 (README.md)
BLOCK = 32  # numbers that share a scale in llama.cpp's q4_0 and q8_0 (ggml-common.h)


def gain(shape: Shape) -> np.ndarray:
    """What each number of a latent is multiplied with: one in 32 LOUD times as large, the others as much smaller."""
    channels = np.full(shape.kv_lora, 1 / LOUD, np.float32)
    channels[::BLOCK] = LOUD
    return channels
