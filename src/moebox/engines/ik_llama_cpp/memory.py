"""ik_llama.cpp's memory: the rules both servers share."""

from moebox.engines.ggml.memory import memory_budget

__all__ = ["memory_budget"]
