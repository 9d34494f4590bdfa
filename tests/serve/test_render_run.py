"""Rendered scripts, run: with stand-ins for engines, docker and Slurm that print how they were called."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core.setting import with_settings
from moebox.engines import flags
from moebox.errors import BadInput
from moebox.flows.recipes import load_recipe
from moebox.render import render
from tests.chain.parse_back import split_argv
from tests.serve.rendered import ROOT, SCONTROL, recipes, run, stand_in

FIRST = "MODEL_PATH=moonshotai/Kimi-K2.6 SERVED_MODEL_NAME=Kimi-K2.6"


def test_a_script_runs_the_engine_as_the_recipe_says(tmp_path: Path):
    """Without variables, the script's argv is the launch's argv."""
    recipe = load_recipe("kimi-k26-vllm")
    seen = run(render(deploy(recipe), "script"), tmp_path, stand_in(tmp_path / "bin", "vllm"))

    assert seen["argv"][1:] == list(engines.build_launch(deploy(recipe)).argv[1:])
    assert seen["env"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"


@pytest.mark.parametrize(("name", "program"), [("mainline", "llama-server"), ("kimi-k26-vllm", "vllm")])
def test_a_script_makes_its_kv_store_where_it_runs(name: str, program: str, tmp_path: Path):
    """In the home of the user who runs the script; the engine gets the path of a folder that exists."""
    recipe = with_settings(recipes()[name], {"kv_tiers": {"ram_gib": 16, "disk_gib": 32}})
    env = stand_in(tmp_path / "bin", program) | {"HOME": str(tmp_path / "a home")}
    argv = run(render(deploy(recipe), "script"), tmp_path, env)["argv"]
    (made,) = (tmp_path / "a home" / ".cache" / "moebox" / "kv").iterdir()

    assert any(str(made) in word for word in argv)


@pytest.mark.parametrize(("name", "program"), [("kimi-k26-vllm", "vllm"), ("kimi-k26-sglang", "sglang")])
def test_a_script_honours_its_variables(name: str, program: str, tmp_path: Path):
    """MODEL_PATH, SERVED_MODEL_NAME, MAX_MODEL_LEN, GPU_MEMORY_UTILIZATION, PORT, ENABLE_EAGLE3 and EAGLE3_MODEL."""
    recipe = load_recipe(name)
    given = {
        "MODEL_PATH": "/data/my model",
        "SERVED_MODEL_NAME": 'a "name"',
        "MAX_MODEL_LEN": "98304",
        "GPU_MEMORY_UTILIZATION": "0.81",
        "PORT": "9876",
        "ENABLE_EAGLE3": "1",
        "EAGLE3_MODEL": "my/draft",
    }
    env = stand_in(tmp_path / "bin", program) | given
    argv = run(render(deploy(recipe), "script"), tmp_path, env, "--log-level", "debug")["argv"]

    expected = with_settings(
        recipe,
        {
            "checkpoint": given["MODEL_PATH"],
            "served_name": given["SERVED_MODEL_NAME"],
            "context": 98304,
            "memory_utilization": 0.81,
            "listen.port": 9876,
            "speculate": {"method": "eagle3", "draft": "my/draft", "tokens": 3},
        },
    )
    wanted = engines.build_launch(deploy(expected)).argv
    assert sorted(argv[1:]) == sorted([*wanted[1:], "--log-level", "debug"])


@settings(max_examples=25)
@given(name=st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]).filter(str.isprintable), min_size=1))
def test_no_text_of_a_recipe_escapes_its_quotes(name: str):
    """Whatever the name, path or flag holds, bash hands it to the engine as it is and runs nothing of it."""
    name = name.lstrip("-") or "x"
    recipe = with_settings(
        load_recipe("kimi-k26-vllm"),
        {"served_name": name, "checkpoint": f"/w/{name}", "env": {"X": name}, "flags": {"chat-template": name}},
    )
    text = render(deploy(recipe), "script").replace("exec vllm serve", "printf '%s\\0' \"$X\"")
    done = subprocess.run(["bash"], input=text.encode(), env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    seen = done.stdout.decode().split("\0")

    assert seen[:2] == [name, f"/w/{name}"]
    assert seen[seen.index("--served-model-name") + 1] == name
    assert seen[seen.index("--chat-template") + 1] == name


def test_a_line_break_in_a_recipe_is_refused():
    """It could end a comment or a unit's line."""
    with pytest.raises(BadInput, match=r"served_name: contains a control character"):
        render(deploy(with_settings(load_recipe("kimi-k26-vllm"), {"served_name": "a\nb"})), "script")


def test_the_community_script_starts_its_container(tmp_path: Path):
    """docker gets the image, the host's network, every variable of the preset, and weights from a local folder."""
    recipe = load_recipe("kimi-k26-community")
    weights = tmp_path / "weights"
    weights.mkdir()
    env = stand_in(tmp_path / "bin", "docker") | {"MODEL_PATH": str(weights), "NCCL_PROTO": "LL", "LD_PRELOAD": ""}
    argv = run(render(deploy(recipe), "script"), tmp_path, env)["argv"]

    image = argv.index("voipmonitor/vllm:glm51-kimi-b12x013-20260510")
    assert argv[image + 1 : image + 4] == ["/opt/venv/bin/vllm", "serve", str(weights)]
    options = argv[:image]
    assert f"{weights}:{weights}:ro" in options
    assert "NCCL_PROTO=LL" in options
    assert "LD_PRELOAD=/opt/libnccl-pr2127.so.2.30.3" in options
    assert options[options.index("--network") + 1] == "host"
    flags.check_arguments("vllm", "", split_argv(argv[image + 4 :], flags.flag_catalogue("vllm")))


@pytest.mark.parametrize(
    ("name", "program"), [("keyed", "vllm"), ("keyed-sglang", "python3"), ("keyed-hybrid", "llama-server")]
)
def test_a_key_reaches_the_engine_and_no_command_line(name: str, program: str, tmp_path: Path):
    """The key goes by environment, or by a file that is a pipe; the argv and the file that was rendered are clean."""
    text = render(deploy(recipes()[name]), "script")
    seen = run(text, tmp_path, stand_in(tmp_path / "bin", program) | {"MY_KEY": "s3cret"})

    assert "s3cret" not in json.dumps(seen["argv"])
    assert "s3cret" in [*seen["env"].values(), *(file.strip() for file in seen["files"])]


def test_a_script_without_its_key_stops(tmp_path: Path):
    """Rather than serve without one, it says which variable is missing."""
    script = tmp_path / "script.sh"
    script.write_text(render(deploy(recipes()["keyed"]), "script"))
    done = subprocess.run(["bash", script], env=stand_in(tmp_path / "bin", "vllm"), capture_output=True, text=True)

    assert done.returncode != 0
    assert "MY_KEY" in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "program"), [("two-nodes", "vllm"), ("two-nodes-sglang", "sglang")])
def test_two_nodes_start_by_rank(name: str, program: str, rank: int, tmp_path: Path):
    """Each machine runs the same script with its number; vLLM's second is headless."""
    recipe = recipes()[name]
    env = stand_in(tmp_path / "bin", program) | {"NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
    argv = run(render(deploy(recipe), "script"), tmp_path, env)["argv"]

    assert argv[argv.index("--nnodes") + 1] == "2"
    assert argv[argv.index("--node-rank") + 1] == str(rank)
    assert ("--headless" in argv) == (program == "vllm" and rank == 1)
    meet = "--master-addr" if program == "vllm" else "--dist-init-addr"
    assert argv[argv.index(meet) + 1].startswith("10.0.0.1")


def test_a_slurm_job_starts_one_task_a_node(tmp_path: Path):
    """The job's own function runs under srun, with the first node of the list as the meeting place."""
    folder = tmp_path / "bin"
    env = stand_in(folder, "vllm") | {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "1"}
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    for name in ("scontrol", "srun"):
        (folder / name).chmod(0o755)
    recipe = recipes()["two-nodes"]
    job = tmp_path / "job.sbatch"
    job.write_text(render(deploy(recipe), "slurm"))
    done = subprocess.run(["bash", job], env=env, capture_output=True, text=True, check=True)
    argv = json.loads(done.stdout.splitlines()[-1])["argv"]

    assert argv[argv.index("--master-addr") + 1] == "n1"
    assert argv[argv.index("--node-rank") + 1] == "1"
    assert "--headless" in argv
    assert "#SBATCH --nodes=2" in job.read_text()


@pytest.mark.parametrize(
    ("script", "program", "given", "expected"),
    [  # the command lines of "Kimi K2.6, Tiny Box, Real Victory", to the letter
        (
            "serve-kimi-k26-community-docker.sh",
            "docker",
            f"{FIRST} MAX_MODEL_LEN=65536 GPU_MEMORY_UTILIZATION=0.90 PORT=5000",
            {
                "--max-model-len": "65536",
                "--gpu-memory-utilization": "0.90",
                "--port": "5000",
                "--kv-cache-dtype": "fp8",
            },
        ),
        (
            "serve-kimi-k26-vllm.sh",
            "vllm",
            f"{FIRST} MAX_MODEL_LEN=65536 GPU_MEMORY_UTILIZATION=0.92 PORT=8000",
            {"--served-model-name": "Kimi-K2.6", "--gpu-memory-utilization": "0.92", "--port": "8000"},
        ),
        ("serve-kimi-k26-sglang.sh", "sglang", "", {"--tool-call-parser": "kimi_k2", "--reasoning-parser": "kimi_k2"}),
        (
            "serve-kimi-k26-community-docker.sh",
            "docker",
            "ENABLE_EAGLE3=1 EAGLE3_MODEL=lightseekorg/kimi-k2.6-eagle3",
            {"--attention-backend": "TRITON_MLA", "--decode-context-parallel-size": "4"},
        ),
    ],
)
def test_the_posts_commands_run(script: str, program: str, given: str, expected: dict[str, str], tmp_path: Path):
    """Variables before the script, as published, end up in the engine's flags; every flag is the engine's own."""
    env = stand_in(tmp_path / "bin", program) | dict(one.split("=", 1) for one in given.split())
    done = subprocess.run([ROOT / "scripts" / script], env=env, capture_output=True, text=True, check=True)
    argv = json.loads(done.stdout)["argv"]

    assert {flag: argv[argv.index(flag) + 1] for flag in expected} == expected
    assert ("lightseekorg/kimi-k2.6-eagle3" in " ".join(argv)) == ("ENABLE_EAGLE3" in given)
    engine = "sglang" if program == "sglang" else "vllm"
    first = argv.index("--model-path" if engine == "sglang" else "--served-model-name")
    flags.check_arguments(engine, "", split_argv(argv[first:], flags.flag_catalogue(engine)))  # type: ignore[arg-type]
