"""Is the machine fit, and why did the engine fail: host checks, log symptoms, kernels."""
