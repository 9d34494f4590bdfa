"""llama.cpp's memory arithmetic: the lines both servers share."""

from moebox.engines.ggml.lines import lines, reasons

__all__ = ["lines", "reasons"]
