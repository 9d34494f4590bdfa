"""ik_llama.cpp's memory: the rules both servers share."""

from moebox.engines.ggml.memory import budget

__all__ = ["budget"]
