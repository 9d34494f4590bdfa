"""Run llama.cpp's server in a Python process, through the xllamacpp wheel.

`python -m moebox.serve.embedded` takes llama-server's flags as far as the wheel supports them; the key comes from
LLAMA_API_KEY. It is started and supervised like any engine; the rest of moebox does not import this module.
"""

import argparse
import json
import os
import signal
import sys
import threading
from typing import Any

CACHE_TYPES = {"f16": "GGML_TYPE_F16", "bf16": "GGML_TYPE_BF16", "f32": "GGML_TYPE_F32", "q8_0": "GGML_TYPE_Q8_0"}
CACHE_TYPES |= {"q4_0": "GGML_TYPE_Q4_0"}
FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
REASONING = {"none": "NONE", "auto": "AUTO", "deepseek": "DEEPSEEK", "deepseek-legacy": "DEEPSEEK_LEGACY"}


def argument_parser() -> argparse.ArgumentParser:
    """Parser of the supported llama-server flags."""
    parser = argparse.ArgumentParser(prog="moebox-embedded", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("-m", "--model", required=True)
    add("-a", "--alias", default="")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("-c", "--ctx-size", type=int, default=4096)
    add("-np", "--parallel", type=int, default=1)
    add("-t", "--threads", type=int, default=0)
    add("-tb", "--threads-batch", type=int, default=0)
    add("-b", "--batch-size", type=int, default=2048)
    add("-ub", "--ubatch-size", type=int, default=512)
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    add("-ngl", "--gpu-layers", "--n-gpu-layers", default="auto")
    add("-fa", "--flash-attn", choices=FLASH, default="auto")
    add("-lv", "--verbosity", "--log-verbosity", type=int, default=4)
    add("--jinja", action=argparse.BooleanOptionalAction, default=True)
    add("--metrics", action="store_true")
    add("--slots", action=argparse.BooleanOptionalAction, default=True)
    add("--special", action="store_true")
    add("--chat-template-kwargs", type=json.loads, default={})
    add("--chat-template", default="")
    add("--reasoning-format", choices=REASONING, default="auto")
    add("--reasoning-budget", type=int, default=-1)
    add("--no-warmup", action="store_true")
    add("--cache-ram", type=int, default=0)
    add("--slot-save-path", default="")
    add("--spec-type", choices=("none", "draft-simple"), default="none")
    add("-md", "--spec-draft-model", default="")
    add("--spec-draft-n-max", type=int, default=3)
    add("-ot", "--override-tensor", type=check_placement, action="append")
    return parser


def check_placement(rule: str) -> str:
    """Validate a placement rule: the wheel is built for the CPU."""
    if not rule.endswith("=CPU"):
        raise argparse.ArgumentTypeError(f"{rule}: the embedded engine has no GPU; only =CPU is supported")
    return rule


def server_parameters(given: argparse.Namespace) -> Any:
    import xllamacpp as x

    p = x.CommonParams()
    p.model.path, p.hostname, p.port = given.model, given.host, given.port
    p.n_ctx, p.n_parallel = given.ctx_size, given.parallel
    p.n_batch, p.n_ubatch = given.batch_size, given.ubatch_size
    # More threads than this process may use would spin, and make llama.cpp many times slower.
    p.cpuparams.n_threads = given.threads or max(1, len(os.sched_getaffinity(0)))
    p.cpuparams_batch.n_threads = given.threads_batch or p.cpuparams.n_threads
    p.cache_type_k = getattr(x.ggml_type, CACHE_TYPES[given.cache_type_k])
    p.cache_type_v = getattr(x.ggml_type, CACHE_TYPES[given.cache_type_v])
    p.flash_attn_type = getattr(x.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{FLASH[given.flash_attn]}")
    p.reasoning_format = getattr(
        x.common_reasoning_format, f"COMMON_REASONING_FORMAT_{REASONING[given.reasoning_format]}"
    )
    p.use_jinja, p.endpoint_metrics, p.endpoint_slots = given.jinja, given.metrics, given.slots
    p.endpoint_props, p.special = False, given.special
    # The wheel's 3 prints what llama-server prints at 4; its own 4 adds every request and answer.
    p.verbosity = max(given.verbosity - 1, 0)
    p.warmup, p.cache_ram_mib = not given.no_warmup, given.cache_ram
    p.default_template_kwargs = {key: json.dumps(value) for key, value in given.chat_template_kwargs.items()}
    p.reasoning_budget, p.webui = given.reasoning_budget, False
    if given.slot_save_path:
        p.slot_save_path = os.path.join(given.slot_save_path, "")  # llama.cpp appends the file name to it
    if given.alias:
        p.model_alias = {given.alias}
    if given.gpu_layers.isdigit():
        p.n_gpu_layers = int(given.gpu_layers)
    if given.chat_template:
        p.chat_template = given.chat_template
    if given.spec_type == "draft-simple":  # a draft model on the same threads
        p.speculative.mparams_dft.path, p.speculative.n_max = given.spec_draft_model, given.spec_draft_n_max
        p.speculative.cpuparams.n_threads = p.cpuparams.n_threads
        p.speculative.cpuparams_batch.n_threads = p.cpuparams_batch.n_threads
    if os.environ.get("LLAMA_API_KEY"):
        p.api_keys = [os.environ["LLAMA_API_KEY"]]
    return p


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    given = argument_parser().parse_args(argv)
    try:
        import xllamacpp
    except ImportError as problem:
        print(f"error: the embedded engine cannot be loaded: {problem}", file=sys.stderr)
        return 3
    try:
        server = xllamacpp.Server(server_parameters(given))
    except RuntimeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    done = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):  # after the server, whose own handlers stop only its loop
        signal.signal(sign, lambda *_: done.set())
    # llama.cpp's own log reports that it listens; a line printed here could overtake it.
    assert server.listening_address
    done.wait()
    print("embedded llama.cpp: stopping", flush=True)
    sys.stdout.flush()
    os._exit(0)  # the wheel's teardown joins threads that may be inside a request


if __name__ == "__main__":
    sys.exit(main())
