"""How llama.cpp's server batches."""

from moebox.engines.ggml.schedule import AHEAD, PROMPTS_FIRST, RESERVES, SEQUENCES, step_tokens

__all__ = ["AHEAD", "PROMPTS_FIRST", "RESERVES", "SEQUENCES", "step_tokens"]
