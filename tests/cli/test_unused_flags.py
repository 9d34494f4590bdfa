"""A flag that would have no effect is refused in one line: it is never ignored silently."""

import pytest

from moebox.cli import main
from moebox.cli.verify import FLAG_CHECKS
from moebox.verify.options import CHECK_NAMES

URL = "http://127.0.0.1:9"  # no server listens there: bad flags are refused before any request
RECIPE = "kimi-k26-vllm"
KERNELS, SERVING = "doctor kernels", "--input 8k --output 1k"
TABLE = [
    (f"compare {URL} {URL} --set jobs=5", "jobs, level, family and parallel need --by task\n\nhint: add --by task"),
    (f"compare {URL} {URL} --set family=errand", "need --by task"),
    (f"compare {URL} {URL} --by task --concurrency 2", "--by task judges jobs: it does not take --concurrency"),
    (
        f"compare {URL} {URL} --by task --set questions=5",
        "--by task judges jobs: it does not take questions, rounds or quality_limit",
    ),
    ("compare phantom phantom --model x", "a recipe names its model and key: it does not take --model\n"),
    ("compare phantom phantom --key-env HOME", "it does not take --key-env\n"),
    (f"compare {URL} phantom --model-b x", "B is a recipe, which names its model: it does not take --model-b"),
    (f"compare phantom {URL} --model x --model-b y", "it does not take --model\n"),
    ("box --box 8x-h200 --measure", "--measure measures this machine: it does not take --box"),
    ("box --measure --ram-bandwidth 614GB/s", "it does not take --ram-bandwidth"),
    ("box --node-python /usr/bin/python3", "--node-python needs --hosts"),
    (f"rehearse {RECIPE} --budget 5m", "--budget needs --measure"),
    (f"rehearse {RECIPE} --phantom --layers 4", "--phantom has its own few layers: it does not take --layers"),
    ("doctor box --box 8x-h200 --need 595GB", "8x-h200 is described without a disk: it does not take --need"),
    ("fleet verify --set streams=8", "streams needs --kill"),
    ("fleet plan f.toml --users 3 --slo ttft=2s --prices p.toml", "f.toml has its own prices and workload"),
    (
        "fleet plan f.toml --users 3 --slo ttft=2s --set kv=fp8",
        "the members of a fleet file have recipes: it does not take",
    ),
    (f"task {URL} --write there", f"--write needs no endpoint: it does not take {URL}"),
    ("task --write there --set api=openai --budget 5m", "--write only writes jobs: it does not take --budget or --set"),
    (f"task {URL} --harbor x --family errand --with claude", "agent: it does not take --family or --with"),
    (f"task {URL} --resume latest --jobs 4 --seed 1", "the jobs of that run: it does not take --jobs or --seed"),
    (f"task {URL} --with claude --set temperature=1", "a real client chooses api, thinking and temperature itself"),
    (
        "run --resume latest --keep --port 0",
        "--resume continues the run as it was started: it does not take --port or --keep",
    ),
    ("run --resume latest --twin --box 8x-b200", "it does not take --box or --twin"),
    ("run kimi-k2.6 --resume latest", "--resume continues the run as it was started: it does not take kimi-k2.6"),
    (f"run kimi-k2.6 --recipe {RECIPE}", "--recipe names its model: it does not take kimi-k2.6"),
    ("run kimi-k2.6 --box 8x-b200 --twin --keep", "--twin has its own port and ends with the run: it does not"),
    (f"up {RECIPE} --set slurm.partition=gpu --dry-run", "slurm.partition, account and time_limit need --slurm"),
    (f"up {RECIPE} --set nodes.python=python3.12 --dry-run", "nodes.python needs --hosts or --slurm"),
    (f"up {RECIPE} --hosts {__file__} --dry-run", "runs on one node"),
    (f"up {RECIPE} --hosts {__file__} --slurm --dry-run", "--hosts and --slurm are two ways to name nodes; give one"),
    (f"verify {URL} --only alive --from tools", "--only alive comes before --from tools: no check is left"),
    (f"verify {URL} --only alive --set parallel=4", "parallel needs the check concurrency or errors"),
    (f"verify {URL} --from errors --context 64k", "context needs the check long-context or lim"),
    (f"verify {URL} --only tools --set vision=no", "vision needs the check vision"),
    ("fleet verify --only alive --context 64k", "context needs the check long-context or limits"),
    (
        f"forecast {RECIPE} --prefill --concurrency 8",
        "--prefill reads one prompt alone: it does not take --conc",
    ),
    (f"forecast {RECIPE} --prefill --context 32k", "a recipe has its own context: it does not take --context"),
    (f"forecast {RECIPE} --decode --set workload.seed=1", "settings of a workload are for a serving run"),
    (f"forecast {RECIPE} --tp 8", "a recipe already has its settings\n\nhint: --set parallel.tp=8 changes one"),
    ("forecast kimi-k26-ik --concurrency 8", "--concurrency needs --decode\n\nhint: add --decode, or leave"),
    (f"forecast {RECIPE} {SERVING} --set workload.think_s=2s", "workload.think_s needs workload.turns"),
    (f"forecast {RECIPE} {SERVING} --set simulation.warm=0.5", "simulation.warm needs simulation.prefix_hit"),
    (f"forecast {RECIPE} {SERVING} --rate 1 --set simulation.window_s=2s", "a rate sends by the clock: it does not"),
    (f"connect curl {URL} --model m --context 64k", "curl has no setting for it: it does not take --context"),
    (f"connect claude-code {URL} --model m --vision", "claude-code sends images without a setting: it does not take"),
    (f"bench {URL} --slo ttft=2s,share=0.5", "--slo share=… needs --search"),
    (f"bench {URL} --set load.arrivals=constant", "load.arrivals and load.burstiness need a rate\n\nhint: add --rate"),
    (f"bench {URL} --rate 2 --set load.arrivals=constant --set load.burstiness=0.5", "load.burstiness has no effect"),
    (f"bench {URL} --rate 2 --concurrency 1,8", "--concurrency 1,8: an open loop has one limit of requests in flight"),
    (f"bench {URL} --search rate --slo ttft=2s --rate 1,2", "--rate 1,2: --search starts at one load"),
    (f"bench {URL} --set workload.file={__file__}", "workload.file has no effect with the kind random"),
    (
        f"bench {URL} --set workload.turns=4",
        "workload.turns has no effect with the kind random\n\nhint: it is for turns",
    ),
    (f"bench {URL} --workload prefix --set workload.prefixes=3", "workload.prefixes needs workload.prefix_tokens"),
    (
        f"bench {URL} --workload prompts --set workload.file={__file__} --input 8k",
        "prompts come from a file: it does not take --input",
    ),
    (
        f"bench {URL} --workload trace --set workload.file={__file__} --rate 2",
        "a trace has its own times: it does not take a rate",
    ),
    (
        f"bench {URL} --workload trace --set workload.file={__file__} --search rate --slo ttft=2s",
        "a trace has its own times: it does not take --search",
    ),
    (f"bench {URL} --pp 512 --slo ttft=2s", "--pp and --tg send one request at a time and do not take --slo"),
    (f"bench {URL} --tg 8 --rate 2", "do not take --rate"),
    (f"bench {URL} --set endpoint.insecure=true", "endpoint.insecure and endpoint.ca_file need an https:// URL"),
    (
        "bench https://127.0.0.1:9 --set endpoint.insecure=yes --set endpoint.ca_file=x",
        "endpoint.insecure accepts any certificate: it does not take endpoint.ca_file",
    ),
    (f"{KERNELS} --engine vllm --output there", "--output needs --tune"),
    (f"{KERNELS} --engine vllm --apply", "--apply needs --fix"),
    (f"{KERNELS} --engine vllm --fix --yes", "--yes needs --fix --apply"),
    (f"{KERNELS} --engine vllm --tune --fix", "--tune and --fix are different actions; give one"),
    (f"{KERNELS} --cache . --configs .", "--cache and --configs are different actions; give one"),
    (f"{KERNELS} --cache . --engine vllm --tp 4", "--cache reads what Triton compiled: it does not take --engine or"),
    (f"{KERNELS} --configs . --model kimi-k2.6", "--configs reads tuned files: it does not take --model"),
    (f"{KERNELS} --engine vllm --revert --arch sm_120", "--revert restores files: it does not take --arch"),
    (f"{KERNELS} --engine vllm --tune --kv fp8", "it does not take --kv"),
]


@pytest.mark.parametrize(("words", "message"), TABLE, ids=[words for words, _ in TABLE])
def test_a_flag_without_effect_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    """Exit code 2, which flag, and what it needs, before anything is requested, started or written."""
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_flags_of_checks_name_checks_that_exist():
    """A renamed check must be renamed in the table of flags too."""
    assert {name for names in FLAG_CHECKS.values() for name in names} <= set(CHECK_NAMES)
