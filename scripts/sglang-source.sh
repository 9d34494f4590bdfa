#!/usr/bin/env bash
# Unpacks SGLang's wheel without its dependencies: its parser reads planned command lines in `make test-parsers`.
#   sglang-source.sh FOLDER      40 MB to download, once
set -euo pipefail
version=0.5.23
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}

if [ -e "$folder/.sglang-$version" ]; then
  exit 0
fi
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --platform manylinux_2_34_x86_64 --dest "$wheel" "sglang==$version"
"$python" -m zipfile -e "$wheel"/sglang-*.whl "$folder"
touch "$folder/.sglang-$version"
