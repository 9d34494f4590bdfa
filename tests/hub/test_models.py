"""Models of the Hub: read by headers, kept with revision and date, and every failure in one line."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint import tiny
from tests.checkpoint.test_safetensors import PARTS
from tests.hub.conftest import TOKEN, Moebox, small_repo
from tests.hub.server import COMMIT, HubServer, Repo


def test_a_repository_is_planned_from_its_headers(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """The bytes are those of the headers, no weights are downloaded, and the token stays with the Hub."""
    padding = 3_000_000
    hub.repos["org/Small"] = small_repo(tmp_path / "m", padding=padding)
    shown = moebox("models", "show", "org/Small", "--json").good().document
    (checkpoint,) = shown["checkpoints"]
    assert checkpoint["how"] == "read"
    assert checkpoint["bytes"] == sum(size for _, _, size in PARTS.values()) + 3 * padding
    assert checkpoint["shards"] == 3
    assert hub.sent < 3.2 * 2**20  # one MiB of each shard
    assert {key for path, _, key in hub.requests if path.startswith("/lfs")} == {""}
    assert f"Bearer {TOKEN}" in {key for path, _, key in hub.requests if path.startswith("/api/models/org")}
    planned = moebox("plan", "org/Small", "--box", "1x-h200", "--json", "--context", "4096").good().document
    assert planned["recipe"]["checkpoint"] == "org/Small"
    assert any(COMMIT[:12] in warning["text"] for warning in planned["warnings"])


def test_a_kept_row_needs_no_network(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """What was read once is planned offline, listed by `models`, and started by a recipe that names it."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    added = moebox("models", "add", "org/Small", "--json").good().document
    assert (added["commit"], added["revision"]) == (COMMIT, "")
    before = len(hub.requests)
    recipe = tmp_path / "recipe.toml"
    box = ("--box", "1x-h200", "--context", "4096")
    moebox("plan", "org/small", *box, "-o", recipe, "--offline").good()
    kept = moebox("models", "--json").good().document["kept"]
    assert [row["repo"] for row in kept] == ["org/Small"]
    command = moebox("up", recipe, "--dry-run", HF_HUB_OFFLINE="1")
    assert "org/Small" in command.out + command.err
    assert len(hub.requests) == before


def test_a_revision_reaches_the_engine(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A plan for a branch starts the engine with the commit that was read."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    hub.repos["org/Small"].revisions = ("main", "v2")
    arguments = ("--box", "1x-h200", "--context", "4096", "--engine", "vllm", "--json")
    planned = moebox("plan", "org/Small@v2", *arguments).good().document
    assert planned["recipe"]["flags"]["revision"] == COMMIT


def test_gguf_headers_are_read_by_range(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """Each quantisation is a checkpoint with its first part; a header longer than the first read is read on."""
    many = {**tiny.DEEPSEEK2, "tokenizer.ggml.tokens": ["x" * 60] * 40_000}
    long = tiny.gguf(tmp_path / "long.gguf", many, tiny.TENSORS).read_bytes() + bytes(9_000_000)
    short = tiny.gguf(tmp_path / "short.gguf", tiny.DEEPSEEK2, tiny.TENSORS).read_bytes() + bytes(9_000_000)
    files = {"IQ3_K/Tiny-IQ3_K-00001-of-00001.gguf": long, "Tiny-Q8_0.gguf": short, "mmproj-F16.gguf": b"no"}
    hub.repos["org/Tiny-GGUF"] = Repo(files)
    shown = moebox("models", "show", "org/Tiny-GGUF", "--json").good().document
    assert [each["name"] for each in shown["checkpoints"]] == ["org/Tiny-GGUF:IQ3_K", "org/Tiny-GGUF:Q8_0"]
    assert hub.sent < len(long)


def test_a_plan_names_the_formats_of_a_repository_and_its_own(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """Three GGUFs in one repository: all are listed, and the one that the plan loads is named."""
    data = tiny.gguf(tmp_path / "a.gguf", tiny.DEEPSEEK2, tiny.TENSORS).read_bytes()
    hub.repos["org/Many"] = Repo({f"T-{quant}.gguf": data for quant in ("Q8_0", "IQ3_K", "Q4_K_M")})
    for chosen in ("Q8_0", "Q4_K_M"):
        plan = (
            moebox("plan", "org/Many", "--box", "1x-h200", "--checkpoint", f"org/Many:{chosen}", "--json")
            .good()
            .document
        )
        (note,) = [each["text"] for each in plan["warnings"] if "formats seen on the Hub" in each["text"]]
        assert all(quant in note for quant in ("Q8_0", "IQ3_K", "Q4_K_M"))
        assert note.endswith(f"this plan uses {chosen}")


def test_code_of_a_repository_is_never_run_or_allowed(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A repository with the shape of a trusted model does not get that model's permission to run its own code."""
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')".encode()
    config = {**tiny.KIMI, "auto_map": {"AutoConfig": "evil.Config"}}
    hub.repos["evil/Kimi-K2.6"] = Repo({"config.json": json.dumps(config).encode(), "evil.py": code})
    planned = moebox("plan", "evil/Kimi-K2.6", "--box", "8x-h200", "--json").good().document
    assert planned["recipe"]["trust_remote_code"] is False
    assert any("never runs" in warning["text"] for warning in planned["warnings"])
    assert not marker.exists()


def test_a_name_that_no_table_has_is_looked_up(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """`plan NAME` finds the repository of that name on the Hub, and other formats of it; --offline does not ask."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    hub.repos["quants/Small-NVFP4"] = Repo({}, tags=["base_model:quantized:org/Small"])
    arguments = ("--box", "1x-h200", "--context", "4096", "--json")
    refused = moebox("plan", "small", *arguments, "--offline")
    assert refused.code == 2
    assert "unknown model 'small'" in refused.err
    planned = moebox("plan", "small", *arguments).good().document
    assert any("nvfp4 (quants/Small-NVFP4)" in warning["text"] for warning in planned["warnings"])
    assert "org/Small" in moebox("models", "search", "small").good().out


def climbing(repo: Repo) -> None:
    repo.listed = {"siblings": [{"rfilename": "../../evil.json", "size": 3, "blobId": "a" * 40}]}


def absolute(repo: Repo) -> None:
    repo.listed = {"siblings": [{"rfilename": "/etc/evil.json", "size": 3, "blobId": "a" * 40}]}


def gated(repo: Repo) -> None:
    repo.gated = True


def commit_that_climbs(repo: Repo) -> None:
    repo.listed = {"sha": "../../../etc"}


def without_hashes(repo: Repo) -> None:
    repo.listed = {"siblings": [{"rfilename": "config.json", "size": 3}]}


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (climbing, 2, "leads out of the cache"),
        (absolute, 2, "leads out of the cache"),
        (gated, 3, "gated; your account has no access"),
        (commit_that_climbs, 3, "without a commit"),
        (without_hashes, 3, "no valid size and hash"),
    ],
)
def test_hostile_and_closed_repositories_are_one_line(
    hub: HubServer, moebox: Moebox, tmp_path: Path, change: Callable[[Repo], None], code: int, line: str
):
    """The line names the repository and the reason; nothing is kept."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    change(hub.repos["org/Small"])
    done = moebox("models", "add", "org/Small")
    assert done.code == code
    assert f"org/Small: {line}" in done.err or line in done.err
    assert len(done.err.strip().splitlines()) <= 3  # the error, and a hint
    assert not list((tmp_path / "state").glob("models/*"))


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("org/missing", 2, "no such repository"),
        ("org/Small@v9", 2, "no such revision"),
        ("org/Small@../../x", 2, "not a valid revision"),
        ("a--b/c", 2, "not a valid name"),
        ("../../etc/passwd", 2, "not a repository of the Hub"),
    ],
)
def test_bad_names_are_one_line(hub: HubServer, moebox: Moebox, tmp_path: Path, name: str, code: int, line: str):
    """Names that do not exist, or cannot."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    done = moebox("models", "add", name)
    assert done.code == code
    assert line in done.err


def test_a_connection_that_breaks_is_tried_again(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """Of three requests two break; a Hub that never replies is one line."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    hub.resets = 2
    assert moebox("models", "add", "org/Small").code == 0
    hub.resets = 100
    done = moebox("models", "search", "Small")
    assert (done.code, hub.resets) == (3, 96)
    assert "no reply from" in done.err


@pytest.mark.parametrize("fault", ["html", "[]", '{"sha": 7, "siblings": 3}', '{"siblings": [{"size": "x"}]}', "null"])
def test_a_reply_that_is_not_the_hubs_is_one_line(hub: HubServer, moebox: Moebox, fault: str):
    """A login page of a hotel, or JSON of another shape."""
    hub.api_fault = fault
    done = moebox("models", "add", "org/Small")
    assert done.code == 3
    assert done.err.startswith("error: org/Small: ")


def test_no_network_and_offline_mode_are_one_line(hub: HubServer, moebox: Moebox):
    """A Hub that cannot be reached, and one that must not be asked."""
    closed = moebox("plan", "org/Small", "--box", "1x-h200", HF_ENDPOINT="http://127.0.0.1:9")
    assert closed.code == 3
    assert "no reply from http://127.0.0.1:9" in closed.err
    offline = moebox("plan", "org/Small", "--box", "1x-h200", HF_HUB_OFFLINE="1")
    assert offline.code == 3
    assert "offline mode" in offline.err


def test_damaged_headers_are_refused(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A flipped byte in config.json, an HTML page for a shard, a wrong range: one line, and nothing is kept."""
    hub.repos["org/Small"] = small_repo(tmp_path / "m")
    for fault, name in (("flip", "config.json"), ("html", ".safetensors"), ("wrong range", ".safetensors")):
        hub.choose_fault = lambda path, start, fault=fault, name=name: fault if path.endswith(name) else ""
        done = moebox("models", "add", "org/Small")
        assert done.code in (2, 3), fault
        assert not list((tmp_path / "state").glob("models/*")), fault


DENSE = {"hidden_size": 2048, "num_hidden_layers": 8, "vocab_size": 1000, "num_attention_heads": 16}


def config_of(architecture: str) -> dict[str, bytes]:
    return {"config.json": json.dumps({**DENSE, "architectures": [architecture]}).encode()}


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            config_of("LlamaForCausalLM") | {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"},
            "is an adapter",
        ),
        (config_of("LlamaForCausalLMEagle3"), "is a draft model"),
        (config_of("BertForMaskedLM"), "does not generate text"),
        ({"Q4/T-Q4_K_M-00002-of-00002.gguf": b"x"}, "have no first part"),
        ({"params.json": b"{}", "consolidated.safetensors": b"x"}, "in the maker's own format only"),
        ({"fp8/config.json": b"{}"}, "in a folder only"),
        ({"pytorch_model.bin": b"x"}, "only files of PyTorch"),
        ({"README.md": b"x"}, "has neither config.json nor a .gguf file"),
        ({"model.safetensors": b"x"}, "has .safetensors files, but no config.json"),
        ({}, "is empty"),
    ],
)
def test_repositories_without_a_model_say_what_they_are(
    hub: HubServer, moebox: Moebox, files: dict[str, bytes], line: str
):
    """One line that names the kind of the repository, and what to name instead."""
    if any(name.endswith(".gguf") for name in files):
        files = dict.fromkeys(files, tiny_gguf())
    hub.repos["org/Odd"] = Repo(files)
    done = moebox("plan", "org/Odd", "--box", "1x-h200")
    assert done.code == 2
    assert line in done.err
    assert "hint: " in done.err


def tiny_gguf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tiny.gguf(Path(folder) / "a.gguf", tiny.DEEPSEEK2, tiny.TENSORS).read_bytes()


def test_shards_are_complete_and_counted_once_without_an_index(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """A gap in the numbers is named by plan and fetch; a second copy in the maker's own format is left out."""
    whole = small_repo(tmp_path / "m", shards=1)
    (shard,) = (data for name, data in whole.files.items() if name.endswith(".safetensors"))
    config = whole.files["config.json"]
    hub.repos["org/Gap"] = Repo({"config.json": config, "model-00001-of-00002.safetensors": shard})
    for command in ("models add", "fetch"):
        done = moebox(*command.split(), "org/Gap")
        assert done.code == 2
        assert "shards are missing: model-00002-of-00002.safetensors" in done.err
    names = ("model.safetensors", "consolidated.safetensors")
    hub.repos["org/Twice"] = Repo({"config.json": config, **dict.fromkeys(names, shard)})
    (checkpoint,) = moebox("models", "show", "org/Twice", "--json").good().document["checkpoints"]
    assert checkpoint["shards"] == 1


@pytest.mark.parametrize(
    "name", ["https://huggingface.co/{}/tree/main", "hf.co/{}", "{}/", "https://hf.co/{}/blob/main/x"]
)
def test_addresses_of_the_hubs_pages_are_names(hub: HubServer, moebox: Moebox, name: str):
    """What a browser shows is understood; a dataset is named as one."""
    hub.repos["org/Dense"] = Repo(config_of("LlamaForCausalLM"))
    moebox("plan", name.format("org/Dense"), "--box", "1x-h200", "--context", "4096").good()
    assert "is a dataset or a space of the Hub" in moebox("plan", "datasets/org/x", "--box", "1x-h200").err


def test_weights_that_cannot_be_loaded_are_one_line(hub: HubServer, moebox: Moebox):
    """PyTorch files are planned by config.json with a warning and never fetched; as is a format without engine."""
    hub.repos["org/Bin"] = Repo(config_of("LlamaForCausalLM") | {"pytorch_model.bin": b"x"})
    planned = moebox("plan", "org/Bin", "--box", "1x-h200", "--context", "4096").good().out
    assert "! notes   org/Bin: has only files of PyTorch (pickle), which moebox neither" in planned
    refused = moebox("fetch", "org/Bin")
    assert (refused.code, len(refused.err.splitlines())) == (2, 3)
    assert "can run code of its author" in refused.err
    config = {
        **DENSE,
        "architectures": ["LlamaForCausalLM"],
        "quantization_config": {"quant_method": "exl3", "bits": 4},
    }
    hub.repos["org/Exl"] = Repo({"config.json": json.dumps(config).encode()})
    assert "! notes   quantisation exl3 is unknown" in moebox("plan", "org/Exl", "--box", "1x-h200").good().out
    assert "has config.json, but no weights that engines load" in moebox("fetch", "org/Exl").err


def test_a_renamed_repository_is_kept_under_both_names(hub: HubServer, moebox: Moebox, tmp_path: Path):
    """The Hub redirects the old name; the recipe has the new one, and neither needs the network again."""
    hub.repos["new/Small"] = small_repo(tmp_path / "m")
    hub.moved["org/Old"] = "new/Small"
    box, recipe = ("--box", "1x-h200", "--context", "4096"), tmp_path / "recipe.toml"
    planned = moebox("plan", "org/Old", *box, "-o", recipe, "--json").good().document
    assert planned["recipe"]["checkpoint"] == "new/Small"
    assert any("org/Old is now new/Small" in warning["text"] for warning in planned["warnings"])
    assert len(moebox("models", "--json").good().document["kept"]) == 1
    asked = len(hub.requests)
    moebox("plan", "org/Old", *box).good()
    moebox("forecast", recipe, "--box", "1x-h200").good()
    assert len(hub.requests) == asked
    assert moebox("fetch", "org/Old", "--json").good().document["repo"] == "new/Small"


def test_an_adapter_names_the_model_to_plan(hub: HubServer, moebox: Moebox):
    """The base model is what the Hub's tags say."""
    tags = ["base_model:org/Base", "base_model:adapter:org/Base"]
    hub.repos["org/Lora"] = Repo({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, tags=tags)
    assert "`moebox plan org/Base`" in moebox("plan", "org/Lora", "--box", "1x-h200").err


def test_a_repository_of_the_table_is_planned_without_network(hub: HubServer, moebox: Moebox):
    """Its published rows stand in for the headers, with a note; a revision or another quantisation is not guessed."""
    offline = {"HF_HUB_OFFLINE": "1"}
    name, box = "unsloth/Kimi-K2.6-GGUF", ("--box", "8x-h200", "--json", "--context", "4096")
    planned = moebox("plan", f"{name}:UD-Q2_K_XL", *box, **offline).good().document
    assert planned["recipe"]["checkpoint"] == "UD-Q2_K_XL"
    assert any("from the table" in warning["text"] for warning in planned["warnings"])
    assert moebox("plan", name, *box, **offline).code == 0
    assert moebox("plan", f"{name}@v2", *box, **offline).code == 3
    assert moebox("plan", f"{name}:Q9_9", *box, **offline).code == 3
