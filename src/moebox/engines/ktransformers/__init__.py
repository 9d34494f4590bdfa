"""KTransformers: SGLang's kvcache-ai fork with kt-kernel, which computes experts on the CPU with AMX or AVX-512."""
