"""KV tiers from plan to command: sizes, rendered flags of each engine, forecasts, refusals and the report's memory."""

import argparse
import json
import re
from dataclasses import replace

import pytest

from moebox import api, codec, engines
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.deployment import Deployment
from moebox.core.recipe import KvTiers, Recipe
from moebox.core.setting import with_settings
from moebox.core.workload_file import find_workload_file
from moebox.detect.declared import parse_box
from moebox.engines.kv_store import store_folder
from moebox.errors import BadInput
from moebox.planner.fit import find_misfit
from moebox.planner.forecast import tier_rows
from moebox.planner.kv_tiers import CacheTier, PrefixCache
from moebox.planner.schedule import Scheduler, SchedulerRules
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules, simulate, simulated_workloads
from moebox.planner.speed import Speed

BOX = "2x-h200"


def planned(engine: str = "vllm", **tiers: object) -> Deployment:
    """A recipe of gpt-oss-120b on two GPUs with 512 GiB of RAM."""
    recipe = Recipe(name="r", engine=engine, model="gpt-oss-120b", checkpoint="mxfp4", served_name="m", max_seqs=64)
    recipe = with_settings(recipe, {"parallel.tp": 2, "memory_utilization": 0.9})
    if tiers:
        recipe = replace(recipe, kv_tiers=KvTiers(**tiers))  # type: ignore[arg-type]
    return deploy(recipe, replace(parse_box(BOX), ram=512 * 2**30))


def agents(
    deployment: Deployment, *, streams: int = 8, **more: object
) -> tuple[Speed, SchedulerRules, SimulatedWorkload]:
    """Speed, rules with a cache of 200,000 tokens, and conversations of agents."""
    speed, memory = Speed.for_deployment(deployment), engines.memory_budget(deployment)
    rules = scheduler_rules(deployment.recipe, 200_000, speed, memory)
    work = replace(find_workload_file("agents"), concurrency=(streams,), requests=streams * 36)
    return speed, rules, replace(simulated_workloads(work)[0], **more)


def command(deployment: Deployment) -> tuple[argparse.Namespace, dict[str, str]]:
    """The tier flags as an engine's parser reads them, and its variables."""
    engines.check_recipe(deployment)
    launch = engines.build_launch(deployment)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--kv-offloading-size", "--cache-ram", "--hicache-size"):
        parser.add_argument(flag, type=float)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    parser.add_argument("--enable-hierarchical-cache", action="store_true")
    parser.add_argument("--hicache-storage-backend")
    parser.add_argument("--slot-save-path")
    return parser.parse_known_args(list(launch.argv))[0], launch.env


def test_a_recipe_reaches_the_command_of_each_engine():
    """The same table becomes each engine's own flags, in its own units; a recipe file carries it."""
    ram = planned(ram_gib=96)
    assert codec.decode(Recipe, codec.parse_toml(codec.to_toml(ram.recipe), where="r"), where="r") == ram.recipe
    assert command(ram)[0].kv_offloading_size == 96

    words, env = command(planned(ram_gib=96, disk_gib=500))
    extra = words.kv_transfer_config["kv_connector_extra_config"]
    assert (extra["cpu_bytes_to_use"], extra["spec_name"]) == (96 * 2**30, "TieringOffloadingSpec")
    assert extra["secondary_tiers"][0]["type"] == "fs"
    assert env["PYTHONHASHSEED"] == "0"

    _, env = command(planned(ram_gib=96, disk_gib=500, connector="lmcache"))
    assert (env["LMCACHE_MAX_LOCAL_CPU_SIZE"], env["LMCACHE_MAX_LOCAL_DISK_SIZE"]) == ("48", "250")

    words, env = command(planned("sglang", ram_gib=200, disk_gib=500))
    assert (words.enable_hierarchical_cache, words.hicache_size, words.hicache_storage_backend) == (True, 107, "file")
    assert int(env["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"]) == 250 * 2**30


@pytest.mark.parametrize("engine", ["llama.cpp", "ik_llama.cpp"])
def test_llama_cpp_gets_a_prompt_cache_and_a_folder_for_slots(engine: str):
    """The RAM is in MiB."""
    recipe = Recipe(name="r", engine=engine, model="m", checkpoint="/w/m.gguf", served_name="m")
    words, _ = command(deploy(replace(recipe, kv_tiers=KvTiers(ram_gib=4, disk_gib=8, folder="/kv"))))

    assert words.cache_ram == 4096
    assert words.slot_save_path.startswith("/kv/")


def test_a_store_belongs_to_one_version_model_type_and_layout():
    """Every difference that changes the bytes is another folder; another port is not."""
    base = planned(ram_gib=96, disk_gib=500)
    changes: list[dict[str, object]] = [
        {"engine_version": "0.31.0"},
        {"kv": "fp8"},
        {"parallel.tp": 1},
        {"checkpoint": "bf16"},
        {"flags.revision": "aaaa"},
        {"flags.revision": "bbbb"},
        {"flags.hf-overrides": '{"rope_theta": 1}'},
        {"env.VLLM_USE_V1": "0"},
        {"runtime.image": "registry.example.org/own:7"},
    ]
    others = [store_folder(deploy(with_settings(base.recipe, change))) for change in changes]

    assert len({store_folder(base), *others}) == 1 + len(changes)
    assert store_folder(deploy(with_settings(base.recipe, {"listen.port": 9}))) == store_folder(base)


@pytest.mark.parametrize(
    ("tiers", "text"),
    [
        ({"ram_gib": -1}, "not a size in GiB"),
        ({"disk_gib": 10}, "needs kv_tiers.ram_gib"),
        ({"ram_gib": 1, "folder": "kv"}, "not a whole path"),
        ({"ram_gib": float("nan")}, "not a size"),
    ],
)
def test_impossible_tiers_are_one_line(tiers: dict[str, object], text: str):
    """Before anything is started."""
    with pytest.raises(BadInput, match=text):
        engines.check_recipe(planned(**tiers))


def test_ram_is_counted_and_too_much_of_it_does_not_fit():
    """The report and `plan --memory` show the tier as cache in RAM."""
    small, large = (engines.memory_budget(planned(ram_gib=size)) for size in (96, 700))
    ram = next(device for device in small.devices if device.device == "ram")

    assert (small.fits, ram.kv) == (True, 96 * 2**30)
    assert (large.fits, large.shortfall > 100 * 2**30) == (False, True)
    misfit = find_misfit(planned(ram_gib=700))
    assert misfit
    assert misfit.remedy.startswith("kv_tiers.ram_gib = ")


@pytest.mark.parametrize(
    ("engine", "version", "tiers", "row"),
    [
        ("vllm", "0.13.0", {"ram_gib": 96}, "issues/31210"),
        ("vllm", "0.32.0", {"ram_gib": 96, "connector": "lmcache"}, "LMCache/issues/4463"),
        ("vllm", "0.25.1", {"ram_gib": 96, "disk_gib": 100}, "issues/49176"),
        ("sglang", "0.5.23", {"ram_gib": 20}, "memory_pool_host.py"),
    ],
)
def test_known_corruption_is_refused_with_its_source(engine: str, version: str, tiers: dict[str, object], row: str):
    """The same recipe without tiers has no such problem."""
    for given, expected in ((tiers, True), ({}, False)):
        deployment = planned(engine, **given)
        deployment = deployment.with_recipe(replace(deployment.recipe, engine_version=version))
        fatal = [warning.source for warning in engines.find_refusals(deployment) if warning.severity == "fatal"]
        assert any(row in source for source in fatal) is expected


@pytest.mark.parametrize(("engine", "box"), [("sglang", BOX), ("ktransformers", "1x-h200")])
def test_hicache_gets_more_ram_than_a_gpu_has_cache(engine: str, box: str):
    """One GiB less than the remedy is refused; with the remedy the flag, in whole GB of a rank, is above the cache."""
    base = planned(engine)
    if engine == "ktransformers":
        recipe = Recipe(
            name="r", engine=engine, model="glm-4.7", checkpoint="fp8", served_name="m", context=65536, max_seqs=4
        )
        base = deploy(recipe, replace(parse_box(box), ram=2**40))
    gpus = [device for device in engines.memory_budget(base).devices if device.device != "ram"]
    held, ranks = max(device.kv for device in gpus), base.recipe.parallel.gpu_count

    def refusal(size: float) -> str:
        given = base.with_recipe(replace(base.recipe, kv_tiers=KvTiers(ram_gib=size)))
        found = [warning for warning in engines.find_refusals(given) if "HiCache" in warning.text]
        return found[0].remedy if found else ""

    least = int(refusal(0.5).removeprefix("kv_tiers.ram_gib = ").removesuffix(" or more"))
    assert refusal(least - 1)
    assert not refusal(least)
    words, _ = command(base.with_recipe(replace(base.recipe, kv_tiers=KvTiers(ram_gib=least))))
    assert held < words.hicache_size * 1e9 <= held + 2e9 + 2**30 / ranks


def test_a_plan_proposes_no_tier_that_is_refused(capsys: pytest.CaptureFixture[str]):
    """SGLang needs more RAM than this box has; with more RAM it is proposed, and the forecast accepts that."""
    arguments = ["kimi-k2.6", "--box", "8x-h200", "--engine", "sglang", "--ram"]
    assert main(["plan", *arguments, "384GiB", "--all"]) == 0
    assert "kv_tiers" not in capsys.readouterr().out
    assert main(["plan", *arguments, "2TiB", "--all"]) == 0
    found = re.search(r"(kv_tiers.ram_gib=\d+)", capsys.readouterr().out)
    assert found
    assert main(["forecast", *arguments, "2TiB", "--set", found[1]]) == 0
    assert "HiCache" not in capsys.readouterr().out


def test_a_sound_version_with_tiers_is_not_refused():
    """The newest release with the native connector."""
    found = engines.find_refusals(planned(ram_gib=96, disk_gib=500))
    assert [warning.text for warning in found if warning.severity == "fatal"] == []


def test_what_a_tier_brings_is_forecast_with_a_range():
    """More conversations than the GPUs hold: fewer tokens are computed again, and later turns begin sooner."""
    target = planned(ram_gib=200, disk_gib=500)
    speed, rules, workload = agents(target)
    gpus, ram, disk = tier_rows(target, engines.memory_budget(target), speed, rules, workload)

    assert [row["tier"] for row in (gpus, ram, disk)] == ["GPUs", "RAM", "disk"]
    assert gpus["hit_share"] + 0.2 < ram["hit_share"] < 1
    assert ram["returning_ttft_ms"] < gpus["returning_ttft_ms"] / 2
    assert all(row["low_ms"] < row["returning_ttft_ms"] < row["high_ms"] for row in (gpus, ram, disk))
    assert simulate(speed, rules, workload).hit_share == pytest.approx(gpus["hit_share"], abs=1e-4)


def test_the_oldest_conversation_leaves_each_tier_first():
    """The GPUs hold two conversations, RAM three: the oldest is gone, the next comes back with its load time."""
    rules = SchedulerRules(
        kv_tokens=200, context=100, max_seqs=4, step_tokens=100, prompts_first=False, reserves_output=False
    )
    speed = Speed.for_deployment(planned())
    cache = PrefixCache(Scheduler(speed=speed, rules=rules), 0, [CacheTier(name="RAM", tokens=300, token_s=0.5)])
    for user in range(4):
        cache.keep_tokens(user, 90, 10)

    assert cache.take_prefix(0, 200, begins=False) == (0, 0.0, "")
    assert cache.take_prefix(1, 200, begins=False) == (90, 45.0, "RAM")
    assert cache.take_prefix(3, 200, begins=False) == (100, 0.0, "GPUs")


def test_the_commands_show_them(capsys: pytest.CaptureFixture[str]):
    """`plan --memory` shows what is possible, `forecast` what it brings."""
    assert main(["plan", "gpt-oss-120b", "--box", BOX, "--ram", "512GiB", "--memory"]) == 0
    assert "kv_tiers.ram_gib=" in capsys.readouterr().out
    words = [
        "--workload",
        "agents",
        "--concurrency",
        "6",
        "--set",
        "requests=216",
        "--set",
        "simulation.kv_tokens=150k",
    ]
    arguments = ["forecast", "gpt-oss-120b", "--box", BOX, "--ram", "512GiB", *words, "--json", "--force"]
    assert main([*arguments, "--set", "kv_tiers.ram_gib=200"]) == 0
    tiers = json.loads(capsys.readouterr().out)["kv_tiers"]
    assert [row["tier"] for row in tiers] == ["GPUs", "RAM"]
    assert tiers[1]["hit_share"] > tiers[0]["hit_share"]


def test_engines_that_read_prompts_read_only_what_is_not_cached():
    """Later turns wait for the new part of their prompts, and their time counts."""
    speed, rules, work = agents(planned(), prefill_engines=2)
    apart = simulate(speed, rules, work)

    assert 0 < apart.hit_share < 1
    assert 0 < apart.returning.mean <= apart.ttft.greatest
    assert apart.returning.mean == pytest.approx(apart.ttft.mean, rel=0.5)


def test_a_prefix_that_all_have_is_kept_once():
    """Blocks are shared; slots are not. The cache is large enough for the histories, not for many prefixes."""
    speed, rules, work = agents(planned(), prefix=20_000)
    assert rules.shares_blocks
    once = simulate(speed, rules, work)
    each = simulate(speed, replace(rules, shares_blocks=False), work)

    assert once.hit_share > each.hit_share
    assert once.peak_kv_tokens <= rules.pool_tokens


def test_the_api_forecasts_with_the_tiers_of_the_recipe():
    work = agents(planned())[2]
    recipes = [replace(target.recipe, memory_utilization=0.28) for target in (planned(), planned(ram_gib=200))]
    slow, fast = (api.forecast(recipe, box=BOX, workloads=[work])[0] for recipe in recipes)
    assert fast["prefix_hit"] > slow["prefix_hit"]


@pytest.mark.parametrize(("ram", "streams", "reason"), [(0, 8, "--ram"), (512 * 2**30, 1, "hold them")])
def test_a_table_without_a_tier_says_why(ram: int, streams: int, reason: str):
    """RAM that is not known, and GPUs that hold everything."""
    target = deploy(planned().recipe, replace(parse_box(BOX), ram=ram))
    speed, rules, work = agents(target, streams=streams)
    assert reason in tier_rows(target, engines.memory_budget(target), speed, rules, work)[0]["without_tier"]
