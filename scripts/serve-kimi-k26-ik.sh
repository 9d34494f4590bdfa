#!/usr/bin/env bash
# kimi-k26-ik: kimi-k2.6 on ik_llama.cpp 2026-08
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               ubergarm/Kimi-K2.6-GGUF  (Hub repository of the weights, or a .gguf file)
#   SERVED_MODEL_NAME        Kimi-K2.6  (model name that clients use)
#   MAX_MODEL_LEN            131072  (context of one request, tokens)
#   PORT                     8000  (port to listen on)
# Arguments given to the script are added to the engine's.
set -euo pipefail

MODEL_PATH="${MODEL_PATH:-ubergarm/Kimi-K2.6-GGUF}"
SERVED_MODEL_NAME="${SERVED_MODEL_NAME:-Kimi-K2.6}"
MAX_MODEL_LEN="${MAX_MODEL_LEN:-131072}"
PORT="${PORT:-8000}"

args=(
  # the weights: a Hub repository
  --hf-repo "$MODEL_PATH"
  # the file in it; the first part of a split one
  --hf-file IQ3_K/Kimi-K2.6-IQ3_K-00001-of-00012.gguf
  # the model name that clients send
  --alias "$SERVED_MODEL_NAME"
  # where it listens: 127.0.0.1 is this machine only, 0.0.0.0 every address
  --host 127.0.0.1
  # the port it answers on
  --port "$PORT"
  # requests at once: 1; more wait in its queue
  --parallel 1
  # KV cache for all slots together: the server divides it among them
  -c "$MAX_MODEL_LEN"
  # CPU threads that compute the experts in RAM: one a physical core
  -t 15
  # CPU threads while a prompt is read
  -tb 32
  # prompt tokens handed to the engine at a time
  -b 8192
  # prompt tokens computed together: experts in RAM are read once for all
  -ub 4096
  # layers whose dense part is on the GPUs; more than any model has: all
  -ngl 999
  # latent attention: the KV cache keeps the compressed form
  -mla 3
  # at most 512 MiB for attention's intermediate results
  -amb 512
  # which tensors lie where: the first rule that matches decides
  -ot 'blk\.(1|2)\.ffn_.*_exps=CUDA0'
  # which tensors lie where: the first rule that matches decides
  -ot 'blk\.(59|60)\.ffn_.*_exps=CUDA1'
  # all other experts stay in RAM
  -ot exps=CPU
  # number format of the KV cache's keys
  -ctk f16
  # the model's own chat template, which tool calls need
  --jinja
  # shows Prometheus metrics at /metrics
  --metrics
  # no tokens for thinking: it is turned off
  --reasoning-budget 0
  # chooses experts within groups, where the model has some
  --grouped-expert-routing
  # reads a whole batch before the first request, so that this one does not wait for it
  --warmup-batch
)
if [[ "$MODEL_PATH" == *.gguf ]]; then
  args=(-m "$MODEL_PATH" "${args[@]:4}")  # a file of this machine instead of the Hub's
fi

exec llama-server "${args[@]}" "$@"
