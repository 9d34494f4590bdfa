"""The environment variables that engines, clients and tools get: what they need, and no key of another service."""

import os
import re
from collections.abc import Mapping

# What programs in general, Python, compilers and container tools read; proxies and certificates reach the Hub.
NAMES = frozenset(
    name
    for line in (
        "PATH HOME USER LOGNAME SHELL TERM TZ LANG LANGUAGE TMPDIR TEMP TMP DBUS_SESSION_BUS_ADDRESS",
        "VIRTUAL_ENV CC CXX CFLAGS CXXFLAGS LDFLAGS LIBRARY_PATH CPATH LD_LIBRARY_PATH LD_PRELOAD",
        "TRANSFORMERS_CACHE TOKENIZERS_PARALLELISM",
        "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HUGGING_FACE_HUB_TOKEN",
        "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy",
    )
    for name in line.split()
)
PREFIXES = (
    *("LC_", "XDG_", "MOEBOX_", "PYTHON", "CONDA_", "DOCKER_", "CONTAINER", "SLURM", "PMI"),
    *("CUDA", "NVIDIA", "NCCL", "NVTE_", "HIP_", "ROCR_", "UCX_", "GLOO_", "OMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("HF_", "VLLM_", "SGLANG_", "SGL_", "LLAMA_", "GGML_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_"),
)
SECRET = re.compile(r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)(_|$)")
HUB_TOKENS = frozenset({"HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"})  # to download gated models


def chosen_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of this process that other programs may have, and `more`.

    A recipe's `env` and keys that it names are added by the caller.
    """
    chosen = {
        name: value
        for name, value in os.environ.items()
        if (name in NAMES or name.startswith(PREFIXES)) and (name in HUB_TOKENS or not SECRET.search(name.upper()))
    }
    return chosen | dict(more or {})
