"""SGLang: tensor parallel serving of safetensors on GPUs."""
