"""llama.cpp's memory arithmetic: the lines both servers share."""

from moebox.engines.ggml.lines import memory_lines, setting_reasons

__all__ = ["memory_lines", "setting_reasons"]
