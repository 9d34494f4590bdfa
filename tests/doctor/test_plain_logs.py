"""Short logs as users have them: what `doctor logs` advises, and that a server that lives is left alone."""

from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.recipe import Recipe
from moebox.doctor.logs import LogSearch, search_pieces
from tests.driving import Done, call_main

READY = "(APIServer pid=7) INFO:     Application startup complete.\n"
ANSWERED = '(APIServer pid=7) INFO:     10.0.0.5:51000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
REJECTED = '(APIServer pid=7) INFO:     10.0.0.5:51001 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has 90.00 MiB free.\n"
LLAMA_READY = "main: server is listening on http://0.0.0.0:9000 - starting the main loop\n"
LLAMA_IDLE = "srv  update_slots: all slots are idle\n"
NO_SUCH_FILE = "llama_model_load: error loading model: llama_model_loader: failed to load model from /m/a.gguf\n"


def explain(folder: Path, log: str, *options: str) -> Done:
    """Run `moebox doctor logs` on a file with this text."""
    path = folder / "engine.log"
    path.write_text(log)
    return call_main("doctor", "logs", str(path), "--json", *options)


# --- servers that live ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "INFO 07-12 [logger.py:41] Received request chatcmpl-9: prompt: 'I see RuntimeError: CUDA error: no kernel "
        "image is available for execution on the device. Address already in use', params: SamplingParams(n=1)",
        "DEBUG 07-12 [logger.py:60] Request chatcmpl-9 details: prompt: 'error: CUDA out of memory', token_ids: None",
        "INFO 07-12 [logger.py:80] Generated response chatcmpl-9: output: 'Out of memory: Killed process 1', reason: x",
        "[2026-07-12 11:00:00] Receive: obj=GenerateReqInput(rid='a', text='fatal: CUDA out of memory', stream=False)",
        "[2026-07-12 11:00:00] Finish: obj=GenerateReqInput(rid='a'), out={'text': 'OSError: Address already in use'}",
        'srv  log_server_r: request:  {"messages":[{"role":"user","content":"cudaMalloc failed: out of memory"}]}',
        'slot process_toke: id  0 | task 3 | n_decoded = 4, next token:  512 " fatal"',
    ],
)
def test_words_of_a_logged_request_are_not_a_failure(tmp_path: Path, line: str) -> None:
    """Users ask servers about error messages; a log with requests in it repeats them."""
    done = explain(tmp_path, f"{line}\n")
    assert (done.code, done.document["findings"], done.document["first_exception"]) == (0, [], None)


def test_the_end_of_a_very_long_request_is_not_a_line_of_its_own() -> None:
    """A prompt of megabytes is cut; what comes after the cut is still the prompt."""
    start = b"INFO [logger.py:41] Received request cmpl-1: prompt: '" + b"x" * 200_000
    search = search_pieces([start, b"y" * 200_000, b" CUDA out of memory\nINFO ready\n"])
    assert (search.cause, search.lines) == (None, 2)


@pytest.mark.parametrize(
    "log",
    [
        READY
        + "(APIServer pid=7) ERROR 07-12 [serving_chat.py:200] ValueError: This model's maximum context length is "
        "4096 tokens. However, you requested 9000 tokens.\n" + REJECTED + ANSWERED,
        READY
        + "(APIServer pid=7) ERROR 07-12 [serving_chat.py:200] Error in preprocessing prompt inputs\n"
        + "(APIServer pid=7) ERROR 07-12 [serving_chat.py:200] jinja2.exceptions.TemplateError: roles alternate\n"
        + REJECTED,
        "[2026-07-12 11:02] The server is fired up and ready to roll!\n"
        "[2026-07-12 11:03] ERROR: Invalid request: ValueError: The input (9000 tokens) is longer than the model's "
        "context length (4096 tokens).\n"
        "[2026-07-12 11:04 TP0] Decode batch, #running-req: 1, gen throughput (token/s): 90.1, #queue-req: 0\n",
        LLAMA_READY + "srv    send_error: task id = 4, error: request (9000 tokens) exceeds the available context size "
        "(4096 tokens), try increasing it\nsrv  log_server_r: request: POST /v1/chat/completions 10.0.0.5 400\n"
        + LLAMA_IDLE,
        LLAMA_READY
        + 'srv    operator(): got exception: {"error":{"code":400,"message":"the request exceeds the available '
        'context size. try increasing the context size or enable context shift"}}\n' + LLAMA_IDLE,
        "ERROR 07-12 [registry.py:500] Error in inspecting model architecture 'Odd'\n"
        "huggingface_hub.errors.HfHubHTTPError: 504 Server Error, retrying in 1s\n" + READY,
        "warning: failed to mlock 4096-byte buffer (after previously locking 0 bytes): Cannot allocate memory\n"
        "Try increasing RLIMIT_MEMLOCK ('ulimit -l' as root).\n" + LLAMA_READY + LLAMA_IDLE,
        OUT_OF_MEMORY + READY,
    ],
    ids=["vllm-long", "vllm-template", "sglang-long", "llama-long", "llama-shift", "retry", "mlock", "second-start"],
)
def test_a_server_that_served_on_has_no_cause_of_failure(tmp_path: Path, log: str) -> None:
    """A rejected request, a failed try or a warning, and the server became ready or served after it."""
    done = explain(tmp_path, log)
    assert (done.code, done.document["cause"], done.document["first_exception"]) == (0, None, None)


def test_the_last_error_of_a_server_that_served_on_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is there to look at, and is not called a failure."""
    log = tmp_path / "engine.log"
    log.write_text(READY + "RuntimeError: the tray is empty\n" + ANSWERED)
    assert main(["doctor", "logs", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "the server became ready or served after it" in shown
    assert "RuntimeError: the tray is empty" in shown


def test_a_request_that_was_too_long_is_worth_a_warning(tmp_path: Path) -> None:
    """Each engine says it in its own words."""
    for words in ("is longer than the model's context length (4096 tokens)", "exceeds the available context size"):
        done = explain(tmp_path, READY + f"ERROR: the request {words}\n" + ANSWERED)
        assert [(each["symptom"], each["severity"]) for each in done.document["findings"]] == [
            ("general-cache-full", "warning")
        ]


@pytest.mark.parametrize(
    "log",
    [
        READY + ANSWERED + OUT_OF_MEMORY,
        OUT_OF_MEMORY + READY + ANSWERED + OUT_OF_MEMORY,
        READY + OUT_OF_MEMORY + ANSWERED + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore had an issue.\n",
        "ERROR: Address already in use\n" + READY + ANSWERED + OUT_OF_MEMORY,
    ],
)
def test_a_failure_after_the_last_reply_is_the_cause(tmp_path: Path, log: str) -> None:
    """Replies before it, or begun while the engine died, do not excuse it, and older errors do not hide it."""
    done = explain(tmp_path, log)
    assert done.code == 1
    assert done.document["cause"]["symptom"] == "oom-cuda"


def test_zero_throughput_is_not_service(tmp_path: Path) -> None:
    """vLLM goes on printing its counters when its workers hang."""
    idle = "INFO [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {} t/s\n"
    assert explain(tmp_path, OUT_OF_MEMORY + idle.format("0.0")).code == 1
    assert explain(tmp_path, idle.format("0.0") + OUT_OF_MEMORY + idle.format("31.5")).code == 0


def test_a_lost_gpu_is_reported_though_a_server_serves_on(tmp_path: Path) -> None:
    """The kernel's lines in a journal are about the machine."""
    xid = "kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=python3, GPU has fallen off the bus.\n"
    assert explain(tmp_path, xid + READY + ANSWERED).code == 1


def test_an_ignored_exception_is_not_a_failure(tmp_path: Path) -> None:
    """Python prints what a destructor raised and goes on."""
    log = (
        "Exception ignored in: <function Pool.__del__ at 0x7f00>\nTraceback (most recent call last):\n"
        '  File "pool.py", line 3, in __del__\nKeyError: 5\n'
    )
    done = explain(tmp_path, log)
    assert (done.code, done.document["findings"]) == (0, [])
    assert explain(tmp_path, log + "KeyError: 6\n").document["first_exception"]["line"] == 5


def test_a_warning_about_locked_memory_is_a_note(tmp_path: Path) -> None:
    """llama.cpp serves without mlock; NCCL's guide has nothing to say about it."""
    done = explain(tmp_path, "warning: failed to mlock 4096-byte buffer: Cannot allocate memory\n")
    assert done.code == 0
    (finding,) = done.document["findings"]
    assert (finding["symptom"], finding["severity"]) == ("llama-mlock", "note")


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ("non-default args: {'model': 'a/b', 'gpu_memory_utilization': 0.7}", 0.65),
        ("vllm serve a/b --gpu-memory-utilization 0.88", 0.83),
        ("vllm serve a/b --gpu-memory-utilization=0.95", 0.88),
        ("server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.80, tp_size=8)", 0.75),
        ("INFO starting", None),
    ],
)
def test_less_memory_than_the_log_shows_is_advised(tmp_path: Path, settings: str, advised: float | None) -> None:
    """A fixed number would be a raise for some; without a present one none is given."""
    change = explain(tmp_path, f"{settings}\n{OUT_OF_MEMORY}").document["cause"]["change"]
    assert change == ({} if advised is None else {"memory_utilization": advised})


@pytest.mark.parametrize(
    ("symptom", "line", "settings", "advised"),
    [
        ("oom-cuda", OUT_OF_MEMORY, {"memory_utilization": 0.7}, {"memory_utilization": 0.65}),
        ("oom-cuda", OUT_OF_MEMORY, {}, {"memory_utilization": 0.88}),
        (
            "general-out-of-memory",
            "CUDA_ERROR_OUT_OF_MEMORY\n",
            {"memory_utilization": 0.6},
            {"memory_utilization": 0.55},
        ),
        (
            "oom-sampler",
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 48 dummy requests.\n",
            {"max_seqs": 48},
            {"max_seqs": 24},
        ),
        (
            "oom-no-cache-blocks",
            "ValueError: No available memory for the cache blocks.\n",
            {"memory_utilization": 0.97},
            {},
        ),
        ("flashinfer-jit-killed", "FAILED: [code=137] a.cuda.o\n", {"env": {"MAX_JOBS": "2"}}, {"env.MAX_JOBS": "1"}),
    ],
)
def test_advice_starts_from_the_recipe(symptom: str, line: str, settings: dict[str, object], advised: object) -> None:
    """Advice to lower never raises, and advice to raise never lowers."""
    recipe = Recipe(name="a", engine="vllm", model="kimi-k2.6", checkpoint="int4", served_name="a", **settings)  # type: ignore[arg-type]
    search = LogSearch(engine="vllm", recipe=recipe)
    search.feed(line.encode())
    search.finish()
    assert search.findings[symptom].change == advised


def test_sglang_out_of_memory_at_graph_capture_advises_smaller_graphs(tmp_path: Path) -> None:
    """What SGLang's own message proposes: fewer captured batch sizes, below the ones that it has."""
    log = (
        "[2026-07-12 11:00:00] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.8, "
        "cuda_graph_max_bs=160, tp_size=8)\n[2026-07-12 11:00:12 TP0] Capture cuda graph begin.\n"
        f"[2026-07-12 11:00:32 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{OUT_OF_MEMORY}\n"
        "Exception: Capture CUDA graph failed: CUDA out of memory. Tried to allocate 512.00 MiB.\n"
    )
    cause = explain(tmp_path, log).document["cause"]
    assert cause["symptom"] == "oom-sglang-graphs"
    assert cause["change"] == {"flags.cuda-graph-max-bs": 16}
    small = explain(tmp_path, log.replace("cuda_graph_max_bs=160", "cuda_graph_max_bs=8")).document["cause"]
    assert small["change"] == {"flags.cuda-graph-max-bs": 4}


@pytest.mark.parametrize(
    "line",
    [
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99000000000",
        "alloc_tensor_range: failed to allocate CPU buffer of size 99000000000",
        "llama_model_load: error loading model: unable to allocate CPU buffer",
        "llama_model_load: error loading model: unable to allocate CPU_REPACK buffer",
    ],
)
def test_a_buffer_in_ram_is_not_the_gpus_memory(tmp_path: Path, line: str) -> None:
    """Fewer expert layers on GPUs would need even more RAM."""
    cause = explain(tmp_path, f"{line}\n").document["cause"]
    assert cause["symptom"] == "oom-llama-ram"
    assert "RAM" in cause["cause"]
    assert "fewer expert layers" not in cause["remedy"]


# --- the engine that a log names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "required", "symptom"),
    [
        ('  File "/opt/vllm/v1/attention/ops/triton_unified.py", line 8, in attend', 131072, "smem-triton-other"),
        ('  File "/opt/sglang/srt/layers/attention/prefill.py", line 8, in attend', 131072, "smem-sglang-vision"),
        ('  File "/opt/sglang/srt/layers/moe/fused.py", line 8, in run', 147456, "smem-sglang-fused-moe"),
        ("", 147456, "smem-triton-other"),
        ("", 106496, "smem-triton-other"),
        ("(EngineCore pid=9) INFO start", 102400, "smem-vllm-mla-fp8"),
        ("", 102400, "smem-triton-other"),
    ],
)
def test_a_number_alone_does_not_name_an_engine(tmp_path: Path, before: str, required: int, symptom: str) -> None:
    """Kernels of several engines need the same bytes; the log's own names decide."""
    line = f"triton.OutOfResources: out of resource: shared memory, Required: {required}, Hardware limit: 101376."
    assert explain(tmp_path, f"{before}\n{line}\n").document["cause"]["symptom"] == symptom


def test_the_engine_given_on_the_command_line_counts_as_named(tmp_path: Path) -> None:
    """A user who says --engine knows."""
    line = "OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.\n"
    cause = explain(tmp_path, line, "--engine", "sglang").document["cause"]
    assert cause["symptom"] == "smem-sglang-fused-moe"


def test_advice_for_another_engine_than_the_logs_is_left_out(tmp_path: Path) -> None:
    """SGLang's log says who wrote it, so vLLM's flags are not advised."""
    log = "[11:00 TP0] server_args=ServerArgs(tp_size=8)\ntorch._dynamo.exc.Unsupported: a graph break\n"
    cause = explain(tmp_path, log).document["cause"]
    assert cause["symptom"] == "general-inductor-any"
    assert cause["change"] == {}


@pytest.mark.parametrize(
    ("log", "flag"),
    [
        ("(EngineCore pid=1) INFO\nRuntimeError: Check failed: major == 10 (12 vs. 10)\n", "moe-runner-backend"),
        ("server_args=ServerArgs(tp=1)\nRuntimeError: Could not find nvcc\n", "VLLM_USE_FLASHINFER_SAMPLER"),
        ("server_args=ServerArgs(tp=1)\nRuntimeError: Assertion: not disable_ue8m0_cast\n", "VLLM_USE_DEEP_GEMM"),
    ],
)
def test_a_flag_of_another_engine_is_not_advised(tmp_path: Path, log: str, flag: str) -> None:
    """The cause is the same in both engines, the setting is not."""
    cause = explain(tmp_path, log).document["cause"]
    assert flag not in str(cause["change"])


def test_an_engine_without_that_setting_is_not_told_to_change_it(tmp_path: Path) -> None:
    """llama.cpp has no memory utilization; RAM of the host is not GPU memory either."""
    cause = explain(tmp_path, "ggml_cuda_init: found 1 CUDA devices:\nCUDA error: out of memory\n").document["cause"]
    assert (cause["symptom"], cause["change"]) == ("oom-llama-buffer", {})
    cause = explain(tmp_path, "gpu_memory_utilization=0.9\nterminate called: std::bad_alloc\n").document["cause"]
    assert (cause["symptom"], cause["change"]) == ("general-host-memory", {})


def test_names_of_parsers_do_not_name_an_engine(tmp_path: Path) -> None:
    """vLLM lists llama3_json, and vLLM's advice is still given."""
    line = "KeyError: 'invalid tool call parser: kimi-k2 (chose from { kimi_k2,llama3_json,llama4_pythonic })'\n"
    assert explain(tmp_path, line).document["cause"]["change"] == {"tool_parser": "kimi_k2"}


# --- causes that a line names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "symptom", "words"),
    [
        ("Failed to open /dev/nvidiactl: Operation not permitted\n", "device-permission", "--gpus"),
        ("NvRmMemInitNvmap failed\n/dev/nvidia0: Permission denied\n", "device-permission", "--gpus"),
        ("Failed to initialize NVML: Insufficient Permissions\nRuntimeError: x\n", "device-permission", "--gpus"),
        (
            "Unable to open /dev/kfd read-write: Permission denied\nRuntimeError: No HIP GPUs are available\n",
            "device-permission-amd",
            "render",
        ),
        (
            "rocBLAS error: Cannot read /opt/rocm/lib/TensileLibrary.dat: No such file or directory for GPU arch : "
            "gfx1151\nAborted (core dumped)\n",
            "amd-rocblas-arch",
            "gfx1151",
        ),
        ("RuntimeError: No HIP GPUs are available\n", "start-no-gpu-amd", "/dev/kfd"),
        ("InductorError: RuntimeError: Failed to find C compiler. Please specify via CC.\n", "no-compiler", "gcc"),
        ("exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: 'gcc'\n", "no-compiler", "gcc"),
        (
            "gguf_init_from_file_impl: this GGUF file is version 4 but this software only supports up to version 3\n"
            + NO_SUCH_FILE,
            "gguf-version",
            "newer build",
        ),
        (
            "gguf_init_from_file_impl: this GGUF file version 50331648 is extremely large, is there a mismatch between "
            "the host and model endianness?\n" + NO_SUCH_FILE,
            "gguf-byte-order",
            "byte order",
        ),
        (
            "gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (Permission denied)\n" + NO_SUCH_FILE,
            "gguf-permission",
            "chmod",
        ),
        (
            "gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (No such file or directory)\n" + NO_SUCH_FILE,
            "start-llama-no-file",
            "path",
        ),
        (
            "llama_model_load: error loading model: unknown pre-tokenizer type: 'new'\n",
            "llama-pre-tokenizer",
            "newer build",
        ),
    ],
)
def test_a_reason_that_the_log_states_is_the_cause(tmp_path: Path, log: str, symptom: str, words: str) -> None:
    """The line with the reason stands above the line that only reports the failure, or is that line."""
    done = explain(tmp_path, log)
    assert done.code == 1
    cause = done.document["cause"]
    assert cause["symptom"] == symptom
    assert words in cause["cause"] + cause["remedy"]
    assert "pip install" not in cause["remedy"]
    assert "enforce-eager" not in str(cause["change"])


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (
            "KeyError: \"Reasoning parser 'kimi-k2' not found. Available parsers: deepseek_r1, glm45, kimi_k2, qwen3\"",
            {"reasoning_parser": "kimi_k2"},
        ),
        (
            'KeyError: "invalid reasoning parser: kimi-k2 (chose from { deepseek_r1,glm45,kimi_k2,qwen3 })"',
            {"reasoning_parser": "kimi_k2"},
        ),
        (
            "KeyError: 'invalid tool call parser: glm-45 (chose from { glm45,glm47,hermes })'",
            {"tool_parser": "glm45"},
        ),
        (
            "launch_server.py: error: argument --tool-call-parser: invalid choice: 'kimi-k2' (choose from 'glm45', "
            "'kimi_k2')",
            {"tool_parser": "kimi_k2"},
        ),
        (
            "launch_server.py: error: argument --reasoning-parser: invalid choice: 'qwen-3' (choose from 'qwen3', "
            "'kimi_k2')",
            {"reasoning_parser": "qwen3"},
        ),
        ("KeyError: 'invalid tool call parser: kimi_k3 (chose from { glm45,kimi_k2,hermes })'", {}),
    ],
)
def test_a_misspelt_parser_gets_the_listed_name(tmp_path: Path, line: str, change: dict[str, str]) -> None:
    """The line lists the names; a name with another number is another model's parser."""
    cause = explain(tmp_path, f"{line}\n").document["cause"]
    assert cause["change"] == change
    if change:
        assert f"use {next(iter(change.values()))}" in cause["remedy"]
    else:
        assert "newer" in cause["remedy"]


STOPPED = (
    "[2026-11-19 20:03:52] Decode batch, #running-req: 8, gen throughput (token/s): 571.47, #queue-req: 0",
    "[2026-11-19 20:04:03] INFO:     Application shutdown complete.",
    "[2026-11-19 20:04:03] INFO:     Finished server process [712]",
    "[2026-11-19 20:04:03] kill_process_tree called: parent_pid=712, include_parent=False, pid=712",
)
KILLED = "[2026-11-19 20:04:03] Subprocess detokenizer (pid=869) crashed with exit code -9. Triggering SIGQUIT ..."


@pytest.mark.parametrize(("first", "killed"), [(4, False), (1, True), (0, True)])
def test_processes_that_a_stopping_server_kills_did_not_fail(tmp_path: Path, first: int, killed: bool) -> None:
    """SGLang 0.5.15 on an H200, stopped by Ctrl-C; without those lines the kernel killed the process."""
    cause = explain(tmp_path, "\n".join((*STOPPED[:first], KILLED, ""))).document["cause"]
    assert (cause is not None) == killed
    assert not killed or cause["symptom"] == "general-killed"


def test_a_missing_table_of_an_expert_kernel_is_a_warning(tmp_path: Path) -> None:
    """The server runs, and may be slower than forecast."""
    line = "[2026-11-19 20:05:42] Using default MoE kernel config. Performance might be sub-optimal! E=129,N=1408"
    result = explain(tmp_path, f"{line}\n{STOPPED[0]}\n")
    assert result.document["cause"] is None
    assert [(each["symptom"], each["severity"]) for each in result.document["findings"]] == [
        ("moe-default-config", "warning")
    ]
    assert "--tune" in result.document["findings"][0]["remedy"]


@pytest.mark.parametrize(
    ("log", "symptom"),
    [
        (
            "Loading shards: 41% | 26/64\n/bin/bash: line 1:  3131 Killed                  vllm serve m\n",
            "general-killed",
        ),
        ("Last State:     Terminated\n  Reason:       OOMKilled\n  Exit Code:    137\n", "general-killed"),
        ("RuntimeError: [SymmDeviceMemory] Device does not support multicasting.\n", "general-symmetric-memory"),
        (
            "llama_model_load: error loading model: missing tensor 'blk.78.nextn.eh_proj.weight'\n"
            "common_init_from_params: failed to load model '/m/GLM-00001-of-00006.gguf'\n",
            "llama-missing-tensor",
        ),
        (
            "RuntimeError: Ninja build failed. Ninja output:\nFAILED: fused_moe_120.cuda.o\n"
            "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\n",
            "general-jit-build",
        ),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "common_chat_templates_init: failed to parse chat template\n",
            "llama-chat-template",
        ),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error, NCCL version 2.28.9\n"
            "Cuda failure 217 'peer access is not supported between these two devices'\n",
            "nccl-no-peer-access",
        ),
    ],
)
def test_the_line_that_names_the_reason_is_the_cause(tmp_path: Path, log: str, symptom: str) -> None:
    """They were unknown, or lost against a later or wider message."""
    assert explain(tmp_path, log).document["cause"]["symptom"] == symptom


def test_notes_are_all_that_is_known_of_a_log_that_shows_no_failure(tmp_path: Path) -> None:
    """Ranks that wait for another one: compilation, or a collective that hangs."""
    waits = "[shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.\n"
    path = tmp_path / "engine.log"
    path.write_text(5 * waits)
    text = " ".join(call_main("doctor", "logs", str(path)).out.split())
    assert "no known failure" in text
    assert "NCCL_P2P_DISABLE=1" in text
