#!/usr/bin/env bash
# kimi-k26-vllm: kimi-k2.6 on vllm 0.32.0
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               moonshotai/Kimi-K2.6  (Hub repository or folder of the weights)
#   SERVED_MODEL_NAME        Kimi-K2.6  (name that clients ask for)
#   MAX_MODEL_LEN            65536  (context of one request, tokens)
#   GPU_MEMORY_UTILIZATION   0.92  (share of each GPU's memory the engine may take)
#   PORT                     8000  (where it answers)
#   ENABLE_EAGLE3            0  (1 turns speculative decoding on; first trust the model without)
#   EAGLE3_MODEL             lightseekorg/kimi-k2.6-eagle3  (draft model)
# Arguments given to the script are added to the engine's.
set -euo pipefail

MODEL_PATH="${MODEL_PATH:-moonshotai/Kimi-K2.6}"
SERVED_MODEL_NAME="${SERVED_MODEL_NAME:-Kimi-K2.6}"
MAX_MODEL_LEN="${MAX_MODEL_LEN:-65536}"
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.92}"
PORT="${PORT:-8000}"
ENABLE_EAGLE3="${ENABLE_EAGLE3:-0}"
EAGLE3_MODEL="${EAGLE3_MODEL:-lightseekorg/kimi-k2.6-eagle3}"

export VLLM_ENGINE_READY_TIMEOUT_S="${VLLM_ENGINE_READY_TIMEOUT_S:-3600}"

args=(
  "$MODEL_PATH"
  --served-model-name "$SERVED_MODEL_NAME"
  --host 127.0.0.1
  --port "$PORT"
  --trust-remote-code
  --tensor-parallel-size 8
  --max-model-len "$MAX_MODEL_LEN"
  --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION"
  --max-num-seqs 64
  --max-num-batched-tokens 8192
  --tool-call-parser kimi_k2
  --reasoning-parser kimi_k2
  --enable-auto-tool-choice
  --kv-cache-dtype bfloat16
  --language-model-only
  --attention-backend TRITON_MLA
  --exclude-tools-when-tool-choice-none
)
if [[ "$ENABLE_EAGLE3" == 1 ]]; then
  args+=(
    --speculative-config '{"method":"eagle3","model":"'"$EAGLE3_MODEL"'","num_speculative_tokens":3}'
  )
fi

exec vllm serve "${args[@]}" "$@"
