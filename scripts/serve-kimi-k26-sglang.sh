#!/usr/bin/env bash
# kimi-k26-sglang: kimi-k2.6 on sglang 0.5.23
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               moonshotai/Kimi-K2.6  (Hub repository or folder of the weights)
#   SERVED_MODEL_NAME        Kimi-K2.6  (name that clients ask for)
#   MAX_MODEL_LEN            65536  (context of one request, tokens)
#   GPU_MEMORY_UTILIZATION   0.93  (share of each GPU's memory the engine may take)
#   PORT                     30000  (where it answers)
#   ENABLE_EAGLE3            0  (1 turns speculative decoding on; first trust the model without)
#   EAGLE3_MODEL             lightseekorg/kimi-k2.6-eagle3  (draft model)
# Arguments given to the script are added to the engine's.
set -euo pipefail

MODEL_PATH="${MODEL_PATH:-moonshotai/Kimi-K2.6}"
SERVED_MODEL_NAME="${SERVED_MODEL_NAME:-Kimi-K2.6}"
MAX_MODEL_LEN="${MAX_MODEL_LEN:-65536}"
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.93}"
PORT="${PORT:-30000}"
ENABLE_EAGLE3="${ENABLE_EAGLE3:-0}"
EAGLE3_MODEL="${EAGLE3_MODEL:-lightseekorg/kimi-k2.6-eagle3}"

args=(
  --model-path "$MODEL_PATH"
  --served-model-name "$SERVED_MODEL_NAME"
  --host 127.0.0.1
  --port "$PORT"
  --trust-remote-code
  --tp-size 8
  --context-length "$MAX_MODEL_LEN"
  --mem-fraction-static "$GPU_MEMORY_UTILIZATION"
  --max-running-requests 64
  --tool-call-parser kimi_k2
  --reasoning-parser kimi_k2
  --kv-cache-dtype bf16
  --language-model-only
  --attention-backend triton
)
if [[ "$ENABLE_EAGLE3" == 1 ]]; then
  args+=(
    --speculative-algorithm EAGLE3
    --speculative-draft-model-path "$EAGLE3_MODEL"
    --speculative-num-steps 3
    --speculative-eagle-topk 1
    --speculative-num-draft-tokens 4
  )
fi

exec sglang serve "${args[@]}" "$@"
