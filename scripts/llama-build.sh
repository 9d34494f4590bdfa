#!/usr/bin/env bash
# Builds llama-server of llama.cpp or ik_llama.cpp for the CPU, once: `make test-llama` calls it.
# rpc is llama.cpp with its RPC backend, for several nodes: `make test-cluster` calls that.
#   llama-build.sh llama|rpc|ik OUT_DIR [SOURCE_DIR]    without SOURCE_DIR the newest sources are cloned
# The servers are static but for the C library, so that one file can be copied into a container.
set -euo pipefail
which=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
source=${3:-}
server=$out/$which/bin/llama-server
jobs=${LLAMA_JOBS:-$(nproc)}

targets=(llama-server)
case $which in
  llama|rpc)
         url=https://github.com/ggml-org/llama.cpp.git
         options=(-DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF)
         [ "$which" = llama ] || { options+=(-DGGML_RPC=ON); targets+=(ggml-rpc-server); } ;;
  ik)    url=https://github.com/ikawrakow/ik_llama.cpp.git
         options=(-DGGML_IQK_FA_ALL_QUANTS=OFF) ;;  # f16 and q8_0 caches only: half the compile time
  *)     echo "llama-build.sh: llama, rpc or ik, not $which" >&2; exit 2 ;;
esac

built=yes
for target in "${targets[@]}"; do [ -x "$out/$which/bin/$target" ] || built=no; done
if [ "$built" = yes ]; then
  echo "$which: built already: $server"
  exit 0
fi
if [ -z "$source" ]; then
  source=$out/src-$which
  if [ ! -d "$source" ]; then  # whole or not at all: what an interrupted clone leaves is no source
    rm -rf "$source.part"
    git clone --quiet --depth 1 "$url" "$source.part"
    mv "$source.part" "$source"
  fi
fi
cmake -S "$source" -B "$out/$which" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DGGML_CUDA=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_CURL=OFF "${options[@]}" > "$out/$which.cmake.log" 2>&1 ||
  { tail -20 "$out/$which.cmake.log" >&2; exit 3; }
nice -n 15 cmake --build "$out/$which" -j "$jobs" --target "${targets[@]}" > "$out/$which.build.log" 2>&1 ||
  { tail -20 "$out/$which.build.log" >&2; exit 3; }
echo "$which: built $server"
