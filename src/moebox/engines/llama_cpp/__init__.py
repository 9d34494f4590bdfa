"""llama.cpp: GGUF on GPUs, CPU or both, by the server of the mainline project."""
