#!/usr/bin/env bash
# Unpacks SGLang's wheel, or that of its KTransformers fork, without its dependencies: its parser reads planned
# command lines in `make test-parsers`.
#   sglang-source.sh FOLDER [sglang-kt]      40 MB to download, once
set -euo pipefail
package=${2:-sglang}
case "$package" in
  sglang) version=0.5.23 ;;
  sglang-kt) version=0.7.2 ;;
  *) echo "sglang or sglang-kt, not $package" >&2; exit 2 ;;
esac
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}

if [ -e "$folder/.$package-$version" ]; then
  exit 0
fi
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --python-version 3.12 --platform manylinux_2_34_x86_64 --platform manylinux_2_35_x86_64 --dest "$wheel" "$package==$version"
"$python" -m zipfile -e "$wheel"/sglang*.whl "$folder"
touch "$folder/.$package-$version"
