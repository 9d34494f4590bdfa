"""ik_llama.cpp: the fork with absorbed MLA and quants of its own; experts in RAM, the rest on the GPUs."""
