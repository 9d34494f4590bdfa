"""Mistakes that users make, over all commands: one line with what is wrong and where, a hint how to fix it, code 2."""

import shlex
from pathlib import Path

import pytest

from moebox.cli import main

RECIPE = 'name = "x"\nengine = "vllm"\nmodel = "kimi-k2.6"\ncheckpoint = "int4"\nserved_name = "k"\n'
BOX = '[[gpus]]\nname = "h200"\n'
# file -> its content; text below "recipe: " is added to a good recipe
FILES: dict[str, str | bytes] = {
    "good.toml": RECIPE,
    "empty.toml": "",
    "empty.json": "",
    "log.txt": "nothing\n",
    "yaml.toml": "engine: vllm\nmodel: x\n",
    "json.toml": '{"engine": "vllm"}',
    "latin.toml": (RECIPE + "# Größe\n").encode("latin-1"),
    "utf16.toml": RECIPE.encode("utf-16"),
    "binary.toml": bytes(range(256)),
    "bad.gguf": b"GGUF" + bytes(100),
    "short.gguf": b"",
    "notjson.json": "hello",
    "foreign.json": '{"foo": 1}',
    "typed.json": '{"format": 1, "id": 3}',
    "model/config.json": "not json",
    "none/readme.txt": "",
    "box.toml": 'gpus = ["8x-h200"]\n',
}
# what is added to a good recipe -> what the error of `up` holds
RECIPES = {
    '[parallel]\ntp = "8"': "parallel.tp must be a whole number, not a text in quotes|write tp = 8, without quotes",
    "parallel = 8": "parallel must be a table|write [parallel] on a line of its own",
    "[[parallel]]\ntp = 8": "parallel must be a table, not a list",
    "[env]\nA = 1": 'env.NAME must be a text in quotes, not a whole number|write NAME = "…", in quotes',
    "[flags]\nx = [true]": "flags.NAME[0] must be a whole number or a text in quotes",
    "[flags.x]\ny = 1": "flags.NAME must be",
    'context = "64k"': "context must be a whole number|write context = 8, without quotes",
    "context = 6.5": "context must be a whole number, not a number",
    "context = -1": "context: -1 is less than 0",
    'kv = "fp9"': "kv: vllm has no cache type 'fp9'|use auto, fp8",
    'speculate = "eagle3"': "speculate must be a table|write [speculate] on a line",
    "hybrid = true": "hybrid must be a table, not true or false",
    '[hybrid]\nexperts = "3+3"': "hybrid.experts must be a list|write experts = [ ]",
    "[climb]\ncontexts = 65536": "climb.contexts must be a list|write contexts = [ ]",
    '[climb.settings]\nkv = "fp8"': "climb.settings.NAME must be a list",
    "listen = 8000": "listen must be a table|write [listen]",
    "[listen]\nport = 99999": "listen.port 99999 is out of range|from 0 to 65,535",
    '[runtime]\nkind = "doker"': "runtime.kind: 'doker' is not a valid value|did you mean docker?",
    '[runtime]\nmounts = ["/a:/b"]': "runtime.mounts must be a table, not a list",
    'vision = "yes"': "vision must be true or false|vision = true",
    "memory_utilization = 90": "memory_utilization: 90.0 is not a share|0.90",
    'memory_utilization = "90%"': "memory_utilization must be a number|without quotes and unit",
    'planned_for = "8x-h200"': "planned_for must be a table|write [planned_for]",
    "[paralel]\ntp = 8": "unknown setting 'paralel'|did you mean parallel?",
    'name = "y"': "a setting is there twice",
}
BOXES = {
    'gpus = ["8x-h200"]\nram = 768': 'ram must be a text in quotes|write ram = "…"',
    'gpus = ["8x-h200"]\ncpu = "EPYC"': "cpu must be a table|write [cpu]",
    'gpus = ["8x-h200"]\nvram = "1TB"': "unknown setting 'vram'|did you mean ram?",
    "gpus = 8": "gpus must be a list, not a whole number",
    'gpus = ["8x-h200", 3]': "gpus[1] must be a text in quotes",
    'gpus = ["8x-h2000"]': "unknown GPU 'h2000'|did you mean h200",
    'gpus = ["1x-q"]\ngpu_types.q = "rtx-5090"': "gpu_types.NAME must be a table",
    'gpus = ["1x-q"]\ngpu_types.q = { like = "rtx-5090" }': "gpu_types.NAME.memory is missing",
    BOX + "count = 8": 'GPUs are a list of names, not tables|write gpus = ["8x-h200"]',
    BOX.replace("gpus", "gpu"): 'GPUs are a list of names, not tables|write gpus = ["1x-h200"]',
    BOX + 'memory = "141GB"': "gpus[0].memory must be a whole number",
    BOX + "pcie = 5": "gpus[0].pcie must be a table",
    'links = "nvlink"\n' + BOX: "links must be a list",
    RECIPE: "is a recipe, not a box|`moebox up` takes recipes",
    "": "is empty|a box file has at least gpus",
}
PLAN, URL = "plan kimi-k2.6 --box 8x-h200", "http://127.0.0.1:1"
COMMANDS = {
    "up empty.toml": "empty.toml: is empty, not a recipe|moebox plan MODEL -o recipe.toml",
    "up yaml.toml": "yaml.toml: not valid TOML|a line of TOML is like",
    "up json.toml": "json.toml: not valid TOML|it looks like JSON",
    "up latin.toml": "latin.toml: is not UTF-8 text (byte 89)|save it as UTF-8",
    "up utf16.toml": "utf16.toml: is not UTF-8 text (byte 0)|save it as UTF-8",
    "up binary.toml": "binary.toml: is not UTF-8 text",
    "up none": "none: is a folder, not a file",
    "up box.toml": "box.toml: is a box file, not a recipe|`moebox plan MODEL --box box.toml`",
    "up god.toml": "god.toml: no such file|did you mean good.toml?",
    "up good.toml --set parallel=8": "--set parallel: is a table of settings|parallel.tp, parallel.pp",
    "up good.toml --set parallel.tp=eight": "parallel.tp=eight: write a whole number",
    "up good.toml --set tp=8": "--set tp: there is no such setting|did you mean parallel.tp?",
    "tune good.toml --set zzz=3": "--set zzz: there is no such setting|known: goal|only, layers|questions, jobs",
    "climb good.toml --set jobs=-3": "--set jobs=-3: write a whole number from 0 on",
    "tune good.toml --resume X": "a recipe, or a run with --resume, not both: a run has its recipe",
    "tune good.toml --budget 1m60x": "'1m60x' is not a time; write it like 2s, 50ms, 5m or 1h30m",
    "compare a b": "'a' is not a URL, a recipe file or a running engine|nothing is running",
    "up good.toml --port -1": "--port -1 is out of range|from 0 to 65,535",
    "render good.toml -o none --force": "none: cannot be written|name a file in it",
    "render good.toml --as yaml": "--as 'yaml': choose script, docker",
    "box --box h200x8": "unknown GPU 'h200x8'|did you mean 8x-h200?",
    "box --box '8 h200'": "unknown GPU '8 h200'|did you mean 8x-h200?",
    "box --box rtx6000prox4": "unknown GPU 'rtx6000prox4'|did you mean 4x-rtx-6000-pro?",
    "box --box 4xrtx6000pro": "unknown GPU 'rtx6000pro'|did you mean rtx-6000-pro?",
    "box --box kimi-k26-vllm": "'kimi-k26-vllm': is a recipe|`moebox up kimi-k26-vllm`",
    "box --box bx.toml": "bx.toml: no such file|did you mean box.toml?",
    "box --box 0x-h200": "0 GPUs is out of range|from 1 to 128",
    "plan kimi-k2.6 --box 1000xH200": "1,000 GPUs is out of range|moebox fleet plan",
    "plan kimi-k2.6 --box 32n-8xH200": "256 GPUs: at most 128 in a box",
    "box --box=-1x-h200": "cannot read '-1x-h200'|8x-rtx-pro-6000-server",
    "box --box 8x-h200 --ram 768GBit": "--ram or --ram-bandwidth: '768GBit' is not a size; write it like 768GiB",
    "box --box 8x-h200 --ram -5GiB": "--ram -5GiB: must not be negative",
    f"{PLAN} --context 64": "--context 64: so few tokens hold no request|did you mean 64k?",
    f"{PLAN} --context 99999999999": "--context 99999999999 is out of range|from 1 to",
    f"{PLAN} --concurrency many": "--concurrency: 'many' is not a count|write it like 32",
    f"{PLAN} --tp 16": "takes 16 GPUs and 8x-h200 has 8|smaller --tp",
    f"{PLAN} --memory-utilization 90": "is not a share of the GPU|0.90",
    f"{PLAN} --bx 1": "Unknown option: --bx. Did you mean --box?",
    "plan good.toml": "good.toml: is a TOML file, not a model|`moebox up` takes recipes",
    "plan ''": "the name of the model is empty|`moebox models`",
    "plan model": "model/config.json: not valid JSON: invalid character",
    "plan ./bed.gguf": "bed.gguf: no such file or folder|did you mean bad.gguf?",
    "plan ./modle": "modle: no such file or folder|did you mean model?",
    "plan bad.gguf": "bad.gguf: GGUF version 0 is not supported",
    "plan short.gguf": "short.gguf: too short for a GGUF file",
    "models show llama-9": "unknown model 'llama-9'|`moebox models` lists the",
    "forecast kimi-k26-vllm --prefill --input 0": "--input 0|each is from 1",
    "engines install vllm/vllm-openai:": "is not an engine version|vllm/vllm-openai:v0.32.0",
    "forecast kimi-k2.6 --box 8x-h200 --workload good.toml": "unknown setting 'name'|known: about",
    "forecast kimi-k2.6 --box 8x-h200 --input 8192": "--input needs --output or --prefill",
    "run --until verfy": "unknown step 'verfy'|plan, doctor, rehearse",
    "run --concurrency 1;8": "'1;8': write it like 1,8,32",
    f"verify {URL} --only nosuch": "unknown check 'nosuch'|arithmetic",
    f"verify {URL} --set deadline_s=-3": "deadline_s=-3: write a time, such as 30s",
    f"bench {URL} --duration 60x": "'60x' is not a time; write it like 2s",
    f"bench {URL} --slo ttft=2": "has no unit|ttft=2s or ttft=2ms",
    "bench import foreign.json": "foreign.json: not a result that can be read|vllm bench serve",
    f"task {URL} --with vim": "unknown client 'vim'|claude, opencode",
    f"task {URL} --mcp nosuch": "--mcp nosuch: write NAME=COMMAND or NAME=URL",
    f"task {URL} --budget -5m": "--budget -5m: must not be negative",
    "runs delete nosuch": "unknown runs command 'delete'|did you mean rm?",
    "models serch x": "unknown models command 'serch'|did you mean search?",
    "engines remove vllm==9": "unknown installed engine 'vllm==9'|there are none",
    "calibrations import empty.json": "empty.json: is empty",
    "calibrations import typed.json": "typed.json: id must be a text in quotes, not a whole number\n",
    "calibrations import notjson.json": "notjson.json: not valid JSON: invalid character (byte 0)",
    "doctor logs log.txt --engine vlm": "unknown engine 'vlm'|did you mean vllm?",
    "doctor box --need 595": "--need 595 is less than 1 MB|595GB",
    "doctor box --against nosuch": "--against nosuch: no such file or folder",
    "doctor kernels --configs none": "none: has no tuned fused-MoE files|begin with E=",
    "doctor kernels --engine vllm --tp 0": "--tp 0 is out of range",
    "fleet up good.toml": "unknown setting 'engine'|known: format",
    "up kimi-k26-vlm.toml": "no such file|a recipe's name has no .toml; did you mean kimi-k26-vllm",
    "--runs nosuch": "no command is named|`moebox --help`",
    "-x": "unknown command '-x'|`moebox --help`",
}
CASES = [
    (f"up case.toml --dry-run #{number}", RECIPE + text, says) for number, (text, says) in enumerate(RECIPES.items())
]
CASES += [(f"box --box case.toml #{number}", text, says) for number, (text, says) in enumerate(BOXES.items())]
CASES += [(words, "", says) for words, says in COMMANDS.items()]
DECODER_WORDS = ("Expected `", "got `", "$.", "codec can't", "Object ", "Traceback", "Errno", "malformed")


@pytest.mark.parametrize(("words", "content", "says"), CASES, ids=[words for words, *_ in CASES])
def test_a_mistake_is_one_line_and_a_hint(
    words: str,
    content: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Exit code 2, nothing on stdout, no words of a decoder; `says` is parts of the message and of its hint."""
    for name in ("RUNS", "STATE", "CALIBRATIONS"):
        monkeypatch.setenv(f"MOEBOX_{name}", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    for name, data in {**FILES, "case.toml": content}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    assert main(shlex.split(words.partition(" #")[0])) == 2
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert shown.out == ""
    assert lines[0].startswith("error: ")
    assert len(lines) <= 3
    for part in says.split("|"):
        assert part in shown.err
    assert not [word for word in DECODER_WORDS if word in shown.err]


def test_a_machine_without_enough_memory_is_not_told_to_plan_for_more(capsys: pytest.CaptureFixture[str]):
    """What would be enough is named, but no flag that plans for RAM which is not there."""
    assert main(["plan", "kimi-k2.6"]) == 1
    error = capsys.readouterr().err
    assert "--ram" not in error
    assert "of RAM would be enough" in error
