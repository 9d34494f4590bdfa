#!/usr/bin/env bash
# An environment with the routers that moebox's cluster suite runs. Usage: router-venv.sh FOLDER [litellm]
set -euo pipefail

folder="${1:?the folder to make it in}"
if [[ ! -x "$folder/bin/python" ]]; then
  python3 -m venv "$folder"
fi
if [[ "${2:-}" == litellm ]]; then
  if ! "$folder/bin/python" -c 'import litellm.proxy' 2>/dev/null; then
    echo "installing litellm into $folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check 'litellm[proxy]==1.106.2'
  fi
  exit 0
fi
if ! "$folder/bin/python" -c 'import sglang_router, vllm_router, kubernetes_validate' 2>/dev/null; then
  echo "installing sglang-router, vllm-router and kubernetes-validate into $folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    'sglang-router==0.3.2' 'vllm-router==0.1.16' 'kubernetes-validate>=1.34'
fi
