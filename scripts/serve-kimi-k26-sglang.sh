#!/usr/bin/env bash
# kimi-k26-sglang: kimi-k2.6 on sglang 0.5.23
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               moonshotai/Kimi-K2.6  (Hub repository of the weights, or a .gguf file)
#   SERVED_MODEL_NAME        Kimi-K2.6  (model name that clients use)
#   MAX_MODEL_LEN            65536  (context of one request, tokens)
#   GPU_MEMORY_UTILIZATION   0.93  (share of each GPU's memory the engine may take)
#   PORT                     30000  (port to listen on)
#   ENABLE_EAGLE3            0  (1 turns speculative decoding on; verify the model without it first)
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
  # the weights: a Hub repository or a folder
  --model-path "$MODEL_PATH"
  # the model name that clients send
  --served-model-name "$SERVED_MODEL_NAME"
  # where it listens: 127.0.0.1 is this machine only, 0.0.0.0 every address
  --host 127.0.0.1
  # the port it answers on
  --port "$PORT"
  # the checkpoint brings its own Python code, which the engine runs
  --trust-remote-code
  # splits every layer over 8 GPUs
  --tp-size 8
  # longest prompt and reply together, in tokens
  --context-length "$MAX_MODEL_LEN"
  # share of each GPU's memory it may take; what weights leave is KV cache
  --mem-fraction-static "$GPU_MEMORY_UTILIZATION"
  # requests at once: 64; more wait in its queue
  --max-running-requests 64
  # turns the model's tool calls into OpenAI's tool_calls
  --tool-call-parser kimi_k2
  # keeps the model's thinking out of the answer
  --reasoning-parser kimi_k2
  # KV cache in 16 bits, as the model was trained
  --kv-cache-dtype bf16
  # text only: the vision tower is not loaded, its memory goes to the cache
  --language-model-only
  # shows Prometheus metrics at /metrics
  --enable-metrics
  # replies say how much of their prompt came from the prefix cache
  --enable-cache-report
  # attention in Triton, the backend that compiles for SM120
  --attention-backend triton
)
if [[ "$ENABLE_EAGLE3" == 1 ]]; then
  args+=(
    # a draft model proposes tokens that the large one checks in one step
    --speculative-algorithm EAGLE3
    # the draft model
    --speculative-draft-model-path "$EAGLE3_MODEL"
    # 3 draft tokens in a row
    --speculative-num-steps 3
    # a chain without branches
    --speculative-eagle-topk 1
    # tokens checked in one step: the draft's, and one more
    --speculative-num-draft-tokens 4
  )
fi

exec sglang serve "${args[@]}" "$@"
