#!/usr/bin/env bash
# kimi-k26-community: kimi-k2.6 on vllm in voipmonitor/vllm:glm51-kimi-b12x013-20260510
#
# Stands alone. Taken from the environment, with what they are otherwise:
#   MODEL_PATH               moonshotai/Kimi-K2.6  (Hub repository of the weights, or a folder)
#   SERVED_MODEL_NAME        Kimi-K2.6  (model name that clients use)
#   MAX_MODEL_LEN            65536  (context of one request, tokens)
#   GPU_MEMORY_UTILIZATION   0.9  (share of each GPU's memory the engine may take)
#   PORT                     5000  (port to listen on)
#   ENABLE_EAGLE3            0  (1 turns speculative decoding on; verify the model without it first)
#   EAGLE3_MODEL             lightseekorg/kimi-k2.6-eagle3  (draft model)
# Arguments given to the script are added to the engine's.
set -euo pipefail

MODEL_PATH="${MODEL_PATH:-moonshotai/Kimi-K2.6}"
SERVED_MODEL_NAME="${SERVED_MODEL_NAME:-Kimi-K2.6}"
MAX_MODEL_LEN="${MAX_MODEL_LEN:-65536}"
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.9}"
PORT="${PORT:-5000}"
ENABLE_EAGLE3="${ENABLE_EAGLE3:-0}"
EAGLE3_MODEL="${EAGLE3_MODEL:-lightseekorg/kimi-k2.6-eagle3}"

if [[ -e "$MODEL_PATH" ]]; then
  # an absolute path; links stay links, for in a Hub cache they carry the names of the shards
  MODEL_PATH="$(cd -- "$(dirname -- "$MODEL_PATH")" && pwd)/$(basename -- "$MODEL_PATH")"
fi
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
  # splits the KV cache by tokens over 4 ranks: longer contexts fit
  --decode-context-parallel-size 4
  # longest prompt and reply together, in tokens
  --max-model-len "$MAX_MODEL_LEN"
  # share of each GPU's memory it may take; what weights leave is KV cache
  --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION"
  # requests at once: 128; more wait in its queue
  --max-num-seqs 128
  # a step reads at most 8,192 prompt tokens, so replies keep flowing
  --max-num-batched-tokens 8192
  # a prompt that begins like an earlier one is not read again
  --enable-prefix-caching
  # turns the model's tool calls into OpenAI's tool_calls
  --tool-call-parser kimi_k2
  # keeps the model's thinking out of the answer
  --reasoning-parser kimi_k2
  # lets the model decide when to call a tool
  --enable-auto-tool-choice
  # KV cache in 8 bits: twice the tokens of bf16
  --kv-cache-dtype fp8
  # text only: the vision tower is not loaded, its memory goes to the cache
  --language-model-only
  # the image's patched latent attention, which reads an fp8 cache on SM120
  --attention-backend TRITON_MLA
  # reads long prompts in pieces between steps of running replies
  --enable-chunked-prefill
  # reads weights straight to the GPUs, in parallel
  --load-format fastsafetensors
  # plans the next step while the GPUs compute this one
  --async-scheduling
  # largest batch replayed as a CUDA graph
  --max-cudagraph-capture-size 512
  # text only: no host memory for images
  --mm-processor-cache-gb 0
)
if [[ "$ENABLE_EAGLE3" == 1 ]]; then
  args+=(
    # a draft model proposes tokens that the large one checks in one step
    --speculative-config '{"method":"eagle3","model":"'"$EAGLE3_MODEL"'","num_speculative_tokens":3,"draft_attention_backend":"TRITON_MLA","draft_kv_cache_dtype":"fp8","rejection_sample_method":"probabilistic"}'
  )
fi

run=(
  docker run --rm
  # all GPUs of this machine
  --gpus all
  # the workers of all GPUs share memory; a container's own 64 MB is too little
  --ipc=host
  # the machine's own network, as the image's makers run it
  --network host
  # the image's makers run it so; it may do to the machine what root may
  --privileged
  # the Hub's cache and what is compiled outlast the container
  -v "$HOME/.cache/huggingface:/root/.cache/huggingface"
  -v "moebox-jit-glm51-kimi-b12x013-20260510:/cache/jit"
  # loading and compiling a large checkpoint outlasts the default of 600 s
  -e VLLM_ENGINE_READY_TIMEOUT_S="${VLLM_ENGINE_READY_TIMEOUT_S:-3600}"
  # PCIe peer-to-peer across sockets; where a platform cannot, NCCL hangs (GPUs at 100 %, 140 W)
  -e NCCL_P2P_LEVEL="${NCCL_P2P_LEVEL:-SYS}"
  # 32 streams with a draft: 998 tok/s with LL alone, 1,003 by default, 1,128 with all three
  -e NCCL_PROTO="${NCCL_PROTO:-LL,LL128,Simple}"
  # one node: no InfiniBand to look for
  -e NCCL_IB_DISABLE="${NCCL_IB_DISABLE:-1}"
  # bus bandwidth of large messages 22.2 -> 37.6 GB/s
  -e NCCL_MIN_NCHANNELS="${NCCL_MIN_NCHANNELS:-8}"
  # NCCL PR #2127: AMD links are not taken for 16 GB/s; 8k prefill 876 -> 7,478 tok/s, dual Turin
  -e LD_PRELOAD=/opt/libnccl-pr2127.so.2.30.3
  # the same library for vLLM's own communicator
  -e VLLM_NCCL_SO_PATH=/opt/libnccl-pr2127.so.2.30.3
  # its own PCIe all-reduce, off: without ForceP2P in the driver decode falls from 125 to 29 tok/s
  -e VLLM_ENABLE_PCIE_ALLREDUCE="${VLLM_ENABLE_PCIE_ALLREDUCE:-0}"
  # the fused all-reduce and add corrupts hidden states under speculation
  -e VLLM_RTX6K_FUSED_ALLREDUCE_ADD="${VLLM_RTX6K_FUSED_ALLREDUCE_ADD:-0}"
  # keeps dense fp8 layers off Marlin
  -e VLLM_DISABLED_KERNELS="${VLLM_DISABLED_KERNELS:-MarlinFP8ScaledMMLinearKernel}"
  # counts CUDA graphs before the cache is sized; with 0 the first long request is out of memory
  -e VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS="${VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS:-1}"
  # architecture that CuTe kernels are compiled for
  -e CUTE_DSL_ARCH="${CUTE_DSL_ARCH:-sm_120a}"
  # launch queues, so that copies and kernels overlap
  -e CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-32}"
  # eight workers do not fight over the host's cores
  -e OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"
  # weights go to the GPU without a detour through host memory
  -e SAFETENSORS_FAST_GPU="${SAFETENSORS_FAST_GPU:-1}"
  # compiled kernels: the first start takes 5 to 20 min, later ones 2.5; wipe with a new image
  -e TRITON_CACHE_DIR=/cache/jit/triton
  # the same, for torch.compile
  -e TORCHINDUCTOR_CACHE_DIR=/cache/jit/inductor
  # the same, for FlashInfer
  -e FLASHINFER_WORKSPACE_BASE=/cache/jit/flashinfer
  # the same, for vLLM
  -e VLLM_CACHE_ROOT=/cache/jit/vllm
  # the same, for CuTe
  -e CUTE_DSL_CACHE_DIR=/cache/jit/cute
  # by name only: the value comes from this environment
  -e HF_TOKEN
)
if [[ -e "$MODEL_PATH" ]]; then
  # weights on this machine: the container sees them under the same path
  weights="$MODEL_PATH"
  if [[ "$weights" == */models--*/snapshots/* ]]; then
    weights="${weights%%/snapshots/*}"  # a Hub cache: snapshots/ holds links into blobs/ beside it
  elif [[ -f "$weights" ]]; then
    weights="$(dirname "$weights")"  # the other parts of a split file lie beside it
  fi
  run+=(-v "$weights:$weights:ro")
fi

exec "${run[@]}" voipmonitor/vllm:glm51-kimi-b12x013-20260510 /opt/venv/bin/vllm serve "${args[@]}" "$@"
