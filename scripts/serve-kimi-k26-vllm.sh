#!/usr/bin/env bash
# kimi-k26-vllm: kimi-k2.6 on vllm 0.32.0
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               moonshotai/Kimi-K2.6  (Hub repository of the weights, or a folder)
#   SERVED_MODEL_NAME        Kimi-K2.6  (model name that clients use)
#   MAX_MODEL_LEN            65536  (context of one request, tokens)
#   GPU_MEMORY_UTILIZATION   0.92  (share of each GPU's memory the engine may take)
#   PORT                     8000  (port to listen on)
#   ENABLE_EAGLE3            0  (1 turns speculative decoding on; verify the model without it first)
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

# loading and compiling a large checkpoint outlasts the default of 600 s
export VLLM_ENGINE_READY_TIMEOUT_S="${VLLM_ENGINE_READY_TIMEOUT_S:-3600}"

args=(
  # the weights: a Hub repository or a folder
  "$MODEL_PATH"
  # the model name that clients send
  --served-model-name "$SERVED_MODEL_NAME"
  # where it listens: 127.0.0.1 is this machine only, 0.0.0.0 every address
  --host 127.0.0.1
  # the port it answers on
  --port "$PORT"
  # the checkpoint brings its own Python code, which the engine runs
  --trust-remote-code
  # splits every layer over 8 GPUs
  --tensor-parallel-size 8
  # longest prompt and reply together, in tokens
  --max-model-len "$MAX_MODEL_LEN"
  # share of each GPU's memory it may take; what weights leave is KV cache
  --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION"
  # requests at once: 64; more wait in its queue
  --max-num-seqs 64
  # a step reads at most 8,192 prompt tokens, so replies keep flowing
  --max-num-batched-tokens 8192
  # turns the model's tool calls into OpenAI's tool_calls
  --tool-call-parser kimi_k2
  # keeps the model's thinking out of the answer
  --reasoning-parser kimi_k2
  # lets the model decide when to call a tool
  --enable-auto-tool-choice
  # KV cache in 16 bits, as the model was trained
  --kv-cache-dtype bfloat16
  # text only: the vision tower is not loaded, its memory goes to the cache
  --language-model-only
  # latent attention in Triton, the backend that compiles for SM120
  --attention-backend TRITON_MLA
  # a request with tool_choice none does not show the model its tools
  --exclude-tools-when-tool-choice-none
)
if [[ "$ENABLE_EAGLE3" == 1 ]]; then
  args+=(
    # a draft model proposes tokens that the large one checks in one step
    --speculative-config '{"method":"eagle3","model":"'"$EAGLE3_MODEL"'","num_speculative_tokens":3}'
  )
fi

exec vllm serve "${args[@]}" "$@"
