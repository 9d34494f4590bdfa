"""How ik_llama.cpp's server batches."""

from moebox.engines.ggml.schedule import DEFAULT_MAX_SEQS, PROMPTS_FIRST, RESERVES_OUTPUT, SCHEDULES_AHEAD, step_tokens

__all__ = ["DEFAULT_MAX_SEQS", "PROMPTS_FIRST", "RESERVES_OUTPUT", "SCHEDULES_AHEAD", "step_tokens"]
