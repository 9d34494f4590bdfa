"""llama.cpp's memory arithmetic: the lines both servers share."""

from moebox.engines.ggml.lines import lines

__all__ = ["lines"]
