#!/usr/bin/env bash
# An environment for `make test-kernels`: Triton and PyTorch, and two engines' wheels unpacked, none of them installed.
set -euo pipefail
venv=${1:?usage: kernels-venv.sh FOLDER}
python=$(command -v python3.11 || command -v python3)
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -c 'import triton, torch' 2>/dev/null ||
  "$venv/bin/python" -m pip install --quiet 'triton>=3.5,<3.10' torch numpy
for wheel in sglang==0.5.8 sglang==0.5.23 vllm==0.32.0; do
  folder="$venv/engines/${wheel/==/-}"
  [ -d "$folder" ] && continue
  rm -rf "$venv/wheels"
  "$venv/bin/python" -m pip download --quiet --no-deps --dest "$venv/wheels" "$wheel"
  mkdir -p "$folder.part"
  (cd "$folder.part" && "$venv/bin/python" -m zipfile -e "$venv"/wheels/*.whl .)
  find "$folder.part" -name '*.so' -delete
  mv "$folder.part" "$folder"
  rm -rf "$venv/wheels"
done
