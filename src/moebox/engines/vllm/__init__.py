"""vLLM: tensor and pipeline parallel serving of safetensors on GPUs."""
