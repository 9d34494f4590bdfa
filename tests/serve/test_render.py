"""Rendered files stand alone: scripts run, YAML is what Compose and Kubernetes take, flags are the engine's own."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import engines
from moebox.cli import main
from moebox.core.change import changed
from moebox.core.recipe import Recipe
from moebox.engines import flags
from moebox.engines.words import split
from moebox.errors import BadInput
from moebox.serve.recipes import model_of, read_recipe, shipped
from moebox.serve.render import EXECUTABLE, FORMS, render
from tests.serve.schemas import COMPOSE, KUBERNETES

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "kimi-k26-community": "serve-kimi-k26-community-docker.sh",
    "kimi-k26-vllm": "serve-kimi-k26-vllm.sh",
    "kimi-k26-sglang": "serve-kimi-k26-sglang.sh",
}
FIRST = "MODEL_PATH=moonshotai/Kimi-K2.6 SERVED_MODEL_NAME=Kimi-K2.6"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
HYBRID = Recipe(
    name="two-cards",
    engine="ik_llama.cpp",
    model="kimi-k2.6",
    checkpoint="/models/Kimi K2.6/Kimi-K2.6-IQ3_K-00001-of-00012.gguf",
    served_name="kimi",
    context=131072,
    max_seqs=2,
    thinking=False,
    hybrid=engines.parse_command("ik_llama.cpp", "llama-server -m x.gguf -mla 3 -amb 512 -t 15").hybrid,
)


def recipes() -> dict[str, Recipe]:
    """One recipe of every shape that is rendered differently."""
    found = {name: read_recipe(name) for name in shipped()}
    found["hybrid"] = HYBRID
    found["keyed"] = changed(found["kimi-k26-vllm"], {"listen.key_env": "MY_KEY", "thinking": False})
    found["keyed-sglang"] = changed(found["kimi-k26-sglang"], {"listen.key_env": "MY_KEY"})
    found["keyed-hybrid"] = changed(HYBRID, {"listen.key_env": "MY_KEY"})
    found["two-nodes"] = changed(found["kimi-k26-vllm"], {"parallel.nodes": 2, "parallel.pp": 2})
    found["two-nodes-sglang"] = changed(found["kimi-k26-sglang"], {"parallel.nodes": 2, "parallel.tp": 16})
    found["speculating"] = changed(
        found["kimi-k26-vllm"], {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 2}, "vision": True}
    )
    return found


def possible(name: str, form: str) -> bool:
    """Whether this recipe has such a form at all; the others are refused in a test of their own."""
    recipe = recipes()[name]
    if form == "k8s":
        return not recipe.runtime.preset
    return form != "slurm" or recipe.runtime.kind == "native"


ALL = [(name, form) for name in recipes() for form in FORMS if possible(name, form)]


@pytest.mark.parametrize(("recipe", "script"), SCRIPTS.items())
def test_the_scripts_in_the_repository_are_current(recipe: str, script: str):
    """`moebox render RECIPE --as script -o scripts/…` has been run after the last change."""
    asked = read_recipe(recipe)

    assert (ROOT / "scripts" / script).read_text() == render(asked, model_of(asked), "script")
    assert os.access(ROOT / "scripts" / script, os.X_OK)


def test_every_script_passes_bash_and_shellcheck(tmp_path: Path):
    """bash parses it and shellcheck has nothing to say."""
    files = []
    for name, form in ALL:
        if form in EXECUTABLE:
            path = tmp_path / f"{name}-{form}.sh"
            path.write_text(render(recipes()[name], model_of(recipes()[name]), form))
            files.append(path)
            subprocess.run(["bash", "-n", path], check=True)
    checked = subprocess.run([SHELLCHECK, *files], capture_output=True, text=True)

    assert (checked.returncode, checked.stdout) == (0, "")
    assert len(files) > 25


@pytest.mark.parametrize(("name", "form"), [one for one in ALL if one[1] in ("compose", "k8s")])
def test_yaml_is_what_compose_and_kubernetes_take(name: str, form: str):
    """Every document fits the closed schema of its kind."""
    recipe = recipes()[name]
    for document in yaml.safe_load_all(render(recipe, model_of(recipe), form)):
        fastjsonschema.validate(COMPOSE if form == "compose" else KUBERNETES[document["kind"]], document)


def words_in(document: dict[str, Any]) -> list[list[str]]:
    """The command lines of a Compose or Kubernetes document."""
    if "services" in document:
        return [[*service.get("entrypoint", []), *service["command"]] for service in document["services"].values()]
    spec = document["spec"]
    pods = [spec.get("template")] if "template" in spec else list(spec.get("leaderWorkerTemplate", {}).values())
    found = [pod["spec"]["containers"][0] for pod in pods if isinstance(pod, dict)]
    return [[*one.get("command", []), *one["args"]] for one in found]


@pytest.mark.parametrize(("name", "form"), [one for one in ALL if one[1] in ("compose", "k8s")])
def test_flags_in_yaml_are_the_engines_own(name: str, form: str):
    """The rendered command line is read back and checked against the catalogue."""
    recipe = recipes()[name]
    known = flags.catalogue(recipe.engine)
    for document in yaml.safe_load_all(render(recipe, model_of(recipe), form)):
        for argv in words_in(document):
            words = [word for word in split(_after_entry(argv), known) if flags.is_flag(word[0])]
            flags.check(recipe.engine, "", words)
            assert len(words) > 8


def _after_entry(argv: list[str]) -> list[str]:
    """What follows the model, which is what the engine's own flags begin with."""
    place = next(
        place for place, word in enumerate(argv) if word.startswith("--") or (word == "-m" and "." in argv[place + 1])
    )
    return argv[place:] if argv[place] != "-m" or argv[place + 1].startswith(("/", "$")) else argv[place + 2 :]


def stand_in(folder: Path, *names: str) -> dict[str, str]:
    """Programs that print how they were called, first on PATH."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "keep = ('VLLM_API_KEY', 'SGLANG_API_KEY', 'LLAMA_API_KEY', 'VLLM_ENGINE_READY_TIMEOUT_S')\n"
            "files = [open(a).read() for a in sys.argv if a.startswith('/dev/fd/')]\n"
            "print(json.dumps({'argv': sys.argv, 'env': {k: os.environ.get(k) for k in keep}, 'files': files}))\n"
        )
        program.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/home/someone"}


def run(text: str, tmp_path: Path, env: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run a rendered script and read what the stand-in printed."""
    script = tmp_path / "script.sh"
    script.write_text(text)
    done = subprocess.run(["bash", script, *arguments], env=env, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_script_runs_the_engine_as_the_recipe_says(tmp_path: Path):
    """Without variables, the script's argv is the launch's argv."""
    recipe = read_recipe("kimi-k26-vllm")
    seen = run(render(recipe, model_of(recipe), "script"), tmp_path, stand_in(tmp_path / "bin", "vllm"))

    assert seen["argv"][1:] == list(engines.launch(recipe, model_of(recipe)).argv[1:])
    assert seen["env"]["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"


@pytest.mark.parametrize(("name", "program"), [("kimi-k26-vllm", "vllm"), ("kimi-k26-sglang", "sglang")])
def test_a_script_honours_its_variables(name: str, program: str, tmp_path: Path):
    """MODEL_PATH, SERVED_MODEL_NAME, MAX_MODEL_LEN, GPU_MEMORY_UTILIZATION, PORT, ENABLE_EAGLE3 and EAGLE3_MODEL."""
    recipe = read_recipe(name)
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
    argv = run(render(recipe, model_of(recipe), "script"), tmp_path, env, "--log-level", "debug")["argv"]

    expected = changed(
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
    wanted = engines.launch(expected, model_of(recipe)).argv
    assert sorted(argv[1:]) == sorted([*wanted[1:], "--log-level", "debug"])


@settings(max_examples=25)
@given(
    name=st.text(
        st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs", "Cc"]), min_size=1
    )
)
def test_no_text_of_a_recipe_escapes_its_quotes(name: str):
    """Whatever the name, path or flag holds, bash hands it to the engine as it is and runs nothing of it."""
    name = name.lstrip("-") or "x"
    recipe = changed(
        read_recipe("kimi-k26-vllm"),
        {"served_name": name, "checkpoint": f"/w/{name}", "env": {"X": name}, "flags": {"chat-template": name}},
    )
    text = render(recipe, model_of(recipe), "script").replace("exec vllm serve", "printf '%s\\0' \"$X\"")
    done = subprocess.run(["bash"], input=text.encode(), env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    seen = done.stdout.decode().split("\0")

    assert seen[:2] == [name, f"/w/{name}"]
    assert seen[seen.index("--served-model-name") + 1] == name
    assert seen[seen.index("--chat-template") + 1] == name


def test_a_line_break_in_a_recipe_is_refused():
    """It could end a comment or a unit's line."""
    with pytest.raises(BadInput, match=r"served_name: holds a control character"):
        render(changed(read_recipe("kimi-k26-vllm"), {"served_name": "a\nb"}), None, "script")


def test_the_community_script_starts_its_container(tmp_path: Path):
    """docker gets the image, the host's network, every variable of the preset, and weights from a local folder."""
    recipe = read_recipe("kimi-k26-community")
    weights = tmp_path / "weights"
    weights.mkdir()
    env = stand_in(tmp_path / "bin", "docker") | {"MODEL_PATH": str(weights), "NCCL_PROTO": "LL", "LD_PRELOAD": ""}
    argv = run(render(recipe, model_of(recipe), "script"), tmp_path, env)["argv"]

    image = argv.index("voipmonitor/vllm:glm51-kimi-b12x013-20260510")
    assert argv[image + 1 : image + 4] == ["/opt/venv/bin/vllm", "serve", str(weights)]
    options = argv[:image]
    assert f"{weights}:{weights}:ro" in options
    assert "NCCL_PROTO=LL" in options
    assert "LD_PRELOAD=/opt/libnccl-pr2127.so.2.30.3" in options
    assert options[options.index("--network") + 1] == "host"
    flags.check("vllm", "", split(argv[image + 4 :], flags.catalogue("vllm")))


@pytest.mark.parametrize(
    ("name", "program"), [("keyed", "vllm"), ("keyed-sglang", "python3"), ("keyed-hybrid", "llama-server")]
)
def test_a_key_reaches_the_engine_and_no_command_line(name: str, program: str, tmp_path: Path):
    """The key goes by environment, or by a file that is a pipe; the argv and the file that was rendered are clean."""
    text = render(recipes()[name], model_of(recipes()[name]), "script")
    seen = run(text, tmp_path, stand_in(tmp_path / "bin", program) | {"MY_KEY": "s3cret"})

    assert "s3cret" not in json.dumps(seen["argv"])
    assert "s3cret" in [*seen["env"].values(), *(file.strip() for file in seen["files"])]


def test_a_script_without_its_key_stops(tmp_path: Path):
    """Rather than serve without one, it says which variable is missing."""
    script = tmp_path / "script.sh"
    script.write_text(render(recipes()["keyed"], None, "script"))
    done = subprocess.run(["bash", script], env=stand_in(tmp_path / "bin", "vllm"), capture_output=True, text=True)

    assert done.returncode != 0
    assert "MY_KEY" in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "program"), [("two-nodes", "vllm"), ("two-nodes-sglang", "sglang")])
def test_two_nodes_start_by_rank(name: str, program: str, rank: int, tmp_path: Path):
    """Each machine runs the same script with its number; vLLM's second is headless."""
    recipe = recipes()[name]
    env = stand_in(tmp_path / "bin", program) | {"NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
    argv = run(render(recipe, model_of(recipe), "script"), tmp_path, env)["argv"]

    assert argv[argv.index("--nnodes") + 1] == "2"
    assert argv[argv.index("--node-rank") + 1] == str(rank)
    assert ("--headless" in argv) == (program == "vllm" and rank == 1)
    meet = "--master-addr" if program == "vllm" else "--dist-init-addr"
    assert argv[argv.index(meet) + 1].startswith("10.0.0.1")


def test_a_slurm_job_starts_one_task_a_node(tmp_path: Path):
    """The job's own function runs under srun, with the first node of the list as the meeting place."""
    folder = tmp_path / "bin"
    env = stand_in(folder, "vllm") | {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "1"}
    (folder / "scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    (folder / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    for name in ("scontrol", "srun"):
        (folder / name).chmod(0o755)
    recipe = recipes()["two-nodes"]
    job = tmp_path / "job.sbatch"
    job.write_text(render(recipe, model_of(recipe), "slurm"))
    done = subprocess.run(["bash", job], env=env, capture_output=True, text=True, check=True)
    argv = json.loads(done.stdout.splitlines()[-1])["argv"]

    assert argv[argv.index("--master-addr") + 1] == "n1"
    assert argv[argv.index("--node-rank") + 1] == "1"
    assert "--headless" in argv
    assert "#SBATCH --nodes=2" in job.read_text()


def test_a_leader_worker_set_gives_each_pod_its_rank():
    """The group's variables stand in the arguments; only the leader has a port."""
    recipe = recipes()["two-nodes"]
    group, service = yaml.safe_load_all(render(recipe, model_of(recipe), "k8s"))
    template = group["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))

    assert template["size"] == 2
    for pod in (leader, worker):
        assert pod["args"][pod["args"].index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
        assert pod["args"][pod["args"].index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in worker["args"]
    assert "--port" not in worker["args"]
    assert "ports" in leader
    assert service["spec"]["selector"] == {"app": "kimi-k26-vllm", "role": "leader"}


def test_a_unit_has_one_start_line_with_the_engines_flags():
    """systemd's continuation lines join to the launch; percent and dollar signs are doubled."""
    recipe = changed(read_recipe("kimi-k26-vllm"), {"flags.chat-template": "/100%/$x.jinja"})
    text = render(recipe, model_of(recipe), "systemd").replace("\\\n", " ")
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(start.removeprefix("ExecStart="))

    assert words[:4] == ["/usr/bin/env", "vllm", "serve", "${MODEL_PATH}"]
    assert "/100%%/$$x.jinja" in words
    flags.check("vllm", "", split(words[4:], flags.catalogue("vllm")))


@pytest.mark.parametrize(
    ("name", "form", "changes", "message"),
    [
        ("kimi-k26-community", "k8s", {}, "preset"),
        ("kimi-k26-community", "slurm", {}, "Slurm"),
        ("kimi-k26-vllm", "k8s", {"checkpoint": "/data/kimi"}, "pods do not see"),
        ("kimi-k26-vllm", "script", {"listen.port": 0}, "listen.port"),
        ("kimi-k26-vllm", "systemd", {"runtime.kind": "docker", "runtime.setup": "pip install x"}, "runtime.setup"),
    ],
)
def test_a_form_that_cannot_be_is_refused(name: str, form: Any, changes: dict[str, Any], message: str):
    """Rather than write a file that cannot work."""
    with pytest.raises(BadInput, match=message):
        render(changed(read_recipe(name), changes), None, form)


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
    flags.check(engine, "", split(argv[first:], flags.catalogue(engine)))  # type: ignore[arg-type]


def test_no_form_names_moebox_at_run_time():
    """Nothing rendered calls moebox; the name may stand in a volume or a comment only."""
    for name, form in ALL:
        text = render(recipes()[name], model_of(recipes()[name]), form)
        lines = [line for line in text.splitlines() if "moebox" in line and not line.lstrip().startswith("#")]
        assert all("moebox-jit-" in line for line in lines), (name, form, lines)


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`moebox render NAME --as compose -o FILE` writes it; `--json` tells the rest."""
    out = tmp_path / "compose.yaml"

    assert main(["render", "kimi-k26-vllm", "--as", "compose", "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == out.read_text()
    assert main(["render", "nosuch"]) == 2
    assert main(["render", "kimi-k26-vllm", "-o", str(tmp_path / "no" / "dir")]) == 2
    error = capsys.readouterr().err
    assert "no recipe 'nosuch'" in error
