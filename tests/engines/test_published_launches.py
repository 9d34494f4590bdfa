"""Published launches, parsed to recipes and rendered back flag for flag."""

import shlex
import tomllib

import pytest

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.core.recipe import EngineName, Recipe, Runtime
from moebox.engines.arguments import canonical_name
from moebox.engines.flags import flag_catalogue
from moebox.errors import BadInput
from tests.chain.parse_back import parse_command, split_argv

# SM120 deployment report of 29 January 2026: the launch that worked, SGLang of that month with a patch.
SM120_REPORT = """
python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2-Instruct --quantization nvfp4 --tp 8
    --trust-remote-code --host 0.0.0.0 --port 30000
"""
# Lambda's guide to Kimi K2.6 on an HGX B200.
LAMBDA_GUIDE = r"""
docker run -d --gpus all \
  --ipc=host \
  -p 8001:8001 \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  -e VLLM_USE_V1=1 \
  --entrypoint bash \
  vllm/vllm-openai:cu130-nightly \
  -c "pip install -q 'transformers==4.57.6' && exec python3 -m vllm.entrypoints.openai.api_server \
      --model moonshotai/Kimi-K2.6 \
      --served-model-name kimi-k2.6 \
      --host 0.0.0.0 \
      --port 8001 \
      --tensor-parallel-size 8 \
      --mm-encoder-tp-mode data \
      --compilation_config.pass_config.fuse_allreduce_rms true \
      --tool-call-parser kimi_k2 \
      --reasoning-parser kimi_k2 \
      --enable-auto-tool-choice \
      --trust-remote-code \
      --kv-cache-dtype fp8 \
      --no-enable-prefix-caching \
      --speculative-config '{\"method\":\"eagle3\",\"model\":\"lightseekorg/kimi-k2.6-eagle3\",\"num_speculative_tokens\":3}'"
"""  # noqa: E501
# "Running Kimi-K2.6 Locally": ik_llama.cpp on two RTX PRO 6000 Max-Q, April 2026.
TWO_GPUS = r"""
podman run --rm \
--device nvidia.com/gpu=all \
-p 8000:8000 \
--cap-add=SYS_NICE \
-v /mnt/data/models/models--ubergarm--Kimi-K2.6-GGUF:/models:ro,Z \
registry.home.arpa/ik_llama.cpp:latest \
-m /models/snapshots/${REF}/IQ3_K/Kimi-K2.6-IQ3_K-00001-of-00012.gguf \
--ctx-size 131768 \
--parallel 1 \
--threads 15 \
--threads-batch 32 \
-b 8192 \
-ub 4096 \
-ngl 999 \
-mla 3 \
-ger \
--special \
-amb 512 \
--jinja \
--host 0.0.0.0 \
--port 8000 \
--warmup-batch \
--alias kimi-k2.6-IQ3_K \
-ot "blk\.(1|2)\.ffn.*=CUDA0" \
-ot "blk\.(59|60)\.ffn.*=CUDA1" \
-ot "exps=CPU" \
--temp 0.6 \
--chat-template-kwargs '{"thinking":false}'
"""


def words_of(recipe: Recipe, argv: tuple[str, ...] | list[str]) -> list[tuple[str, ...]]:
    """The flags of an argv in one spelling each, sorted; rules whose order matters keep it by standing together."""
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    words = [(canonical_name(word[0], known), *word[1:]) for word in split_argv(argv, known)]
    return sorted(words, key=lambda word: word[0])


def inner(text: str) -> list[str]:
    """The flags of a published command: what follows the image, the module or the `exec`."""
    words = shlex.split(text.replace("\\\n", " "))
    if "-c" in words:
        words = shlex.split(words[words.index("-c") + 1].partition("&& exec ")[2].replace("\\\n", " "))
    for last in (
        "sglang.launch_server",
        "vllm.entrypoints.openai.api_server",
        "registry.home.arpa/ik_llama.cpp:latest",
    ):
        if last in words:
            return words[words.index(last) + 1 :]
    raise AssertionError("no engine in the command")


def options(argv: tuple[str, ...] | list[str], image: str) -> list[str]:
    """docker's own options, sorted, values joined with =."""
    words, found = list(argv[2 : list(argv).index(image)]), []
    while words:
        option = words.pop(0)
        takes = option in ("--gpus", "--device", "-p", "-v", "-e", "--entrypoint")
        found.append(f"{option}={words.pop(0)}" if takes else option)
    return sorted(found)


def roundtrip(engine: EngineName, text: str, version: str) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a command, through TOML, and the engine's argv made from it."""
    recipe = parse_command(engine, text.strip(), version=version)
    again = codec.decode(Recipe, tomllib.loads(codec.to_toml(recipe)), where="again")
    assert again == recipe
    return recipe, engines.build_launch(deploy(recipe)).argv


def test_the_sm120_report_launch():
    """SGLang's launch of January 2026, `--quantization nvfp4` and all; `--tp` is argparse's short for --tp-size."""
    recipe, argv = roundtrip("sglang", SM120_REPORT, "0.5.8")

    assert argv[:3] == ("python3", "-m", "sglang.launch_server")
    assert words_of(recipe, argv[3:]) == words_of(recipe, inner(SM120_REPORT))
    unwatched = {"enable-metrics": False, "enable-cache-report": False}  # which a launch of ours has
    assert (recipe.parallel.tp, recipe.listen.port) == (8, 30000)
    assert recipe.flags == {"quantization": "nvfp4", **unwatched}
    engines.check_recipe(deploy(recipe))


def test_the_sm120_report_launch_is_refused_by_sglang_of_today():
    """The value has another name by now, and the refusal gives it."""
    recipe = parse_command("sglang", SM120_REPORT.strip())

    with pytest.raises(BadInput, match="nvfp4") as refused:
        engines.check_recipe(deploy(recipe))
    assert refused.value.hint == "use modelopt_fp4"


def test_the_lambda_guide_launch():
    """docker around `bash -c "pip install … && exec …"` with a dotted flag, rendered back option for option."""
    recipe, argv = roundtrip("vllm", LAMBDA_GUIDE, "0.20.0")
    command = engines.launch_command(deploy(recipe), engines.build_launch(deploy(recipe)))
    published = shlex.split(LAMBDA_GUIDE.replace("\\\n", " "))

    assert recipe.runtime.setup == "pip install -q 'transformers==4.57.6'"
    assert recipe.speculate is not None
    assert recipe.speculate.draft == "lightseekorg/kimi-k2.6-eagle3"
    assert argv[:3] == ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert words_of(recipe, argv[3:]) == words_of(recipe, inner(LAMBDA_GUIDE))
    ours, theirs = (options(argv, recipe.runtime.image) for argv in (command, published))
    added = ["--rm", "-e=HF_TOKEN", "-e=VLLM_ENGINE_READY_TIMEOUT_S=3600"]  # by name only; and time for a 600 GB load
    assert sorted(set(ours) - set(theirs)) == added
    assert set(theirs) - set(ours) == {"-d"}  # moebox stays with what it starts
    assert command[-2:] == ("-c", f"{recipe.runtime.setup} && exec {shlex.join(argv)}")
    engines.check_recipe(deploy(recipe))


def test_the_two_gpu_launch():
    """podman and ik_llama.cpp: experts placed by rules whose order is kept."""
    recipe, argv = roundtrip("ik_llama.cpp", TWO_GPUS, "2026-04")
    command = engines.launch_command(deploy(recipe), engines.build_launch(deploy(recipe)))
    published = shlex.split(TWO_GPUS.replace("\\\n", " "))

    assert words_of(recipe, argv[1:]) == words_of(recipe, inner(TWO_GPUS))
    assert recipe.hybrid is not None
    assert recipe.hybrid.ranges == (r"blk\.(1|2)\.ffn.*=CUDA0", r"blk\.(59|60)\.ffn.*=CUDA1", "exps=CPU")
    assert (recipe.thinking, recipe.hybrid.mla, recipe.hybrid.attention_buffer) == (False, 3, 512)
    assert options(command, recipe.runtime.image) == options(published, recipe.runtime.image)
    engines.check_recipe(deploy(recipe))


def test_the_two_gpu_launch_gives_warnings():
    """--special with --jinja breaks tool calls in newer builds; -ger does nothing for Kimi."""
    recipe = parse_command("ik_llama.cpp", TWO_GPUS.strip(), version="2026-04")

    warnings = " ".join(one.text for one in engines.find_refusals(deploy(recipe)))
    assert "--special with --jinja" in warnings
    assert "-ger does nothing" in warnings


def test_a_port_published_on_loopback_stays_on_loopback():
    """`-p 127.0.0.1:…` keeps the server private, and stays so."""
    text = "docker run --rm --gpus all -p 127.0.0.1:9000:9000 vllm/vllm-openai:v0.32.0 a/b --port 9000 --host 0.0.0.0"
    recipe = parse_command("vllm", text)

    assert (recipe.listen.host, recipe.listen.port) == ("127.0.0.1", 9000)
    assert recipe.runtime == Runtime(kind="docker", image="vllm/vllm-openai:v0.32.0")
    assert "127.0.0.1:9000:9000" in engines.launch_command(deploy(recipe), engines.build_launch(deploy(recipe)))
