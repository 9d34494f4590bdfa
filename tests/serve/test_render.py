"""Rendered files: what Compose, Kubernetes and systemd take, with the engine's own flags; scripts are current."""

import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import fastjsonschema
import pytest
import yaml

from moebox import phantom
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.setting import with_settings
from moebox.engines import build_launch, flags
from moebox.engines.engine import load_engine
from moebox.engines.kv_store import store_folder
from moebox.engines.reasons import variable_reason
from moebox.errors import BadInput
from moebox.flows.recipes import load_recipe
from moebox.render import EXECUTABLE_FORMATS, render
from tests import shellcheck
from tests.chain.parse_back import split_argv
from tests.sampling import one_in
from tests.serve.rendered import ALL, ROOT, recipes
from tests.serve.schemas import COMPOSE, KUBERNETES

SCRIPTS = {
    "kimi-k26-community": "serve-kimi-k26-community-docker.sh",
    "kimi-k26-vllm": "serve-kimi-k26-vllm.sh",
    "kimi-k26-sglang": "serve-kimi-k26-sglang.sh",
    "kimi-k26-ik": "serve-kimi-k26-ik.sh",
}


@pytest.mark.parametrize(("recipe", "script"), SCRIPTS.items())
def test_the_scripts_in_the_repository_are_current(recipe: str, script: str):
    """`moebox render RECIPE --as script -o scripts/…` has been run after the last change."""
    asked = load_recipe(recipe)

    assert (ROOT / "scripts" / script).read_text() == render(deploy(asked), "script")
    assert os.access(ROOT / "scripts" / script, os.X_OK)


def test_every_script_passes_bash_and_shellcheck(tmp_path: Path):
    """bash parses it and shellcheck has nothing to say."""
    files = []
    for name, form in ALL:
        if form in EXECUTABLE_FORMATS:
            path = tmp_path / f"{name}-{form}.sh"
            path.write_text(render(deploy(recipes()[name]), form))
            files.append(path)
            subprocess.run(["bash", "-n", path], check=True)

    assert len(files) > 25
    assert shellcheck.complaints(*files) == ""


@pytest.mark.parametrize(("name", "form"), one_in(3, [one for one in ALL if one[1] in ("compose", "k8s")], unpack=True))
def test_yaml_is_what_compose_and_kubernetes_take(name: str, form: str):
    """Every document fits the closed schema of its kind."""
    recipe = recipes()[name]
    for document in yaml.safe_load_all(render(deploy(recipe), form)):
        fastjsonschema.validate(COMPOSE if form == "compose" else KUBERNETES[document["kind"]], document)


def explained(text: str) -> dict[str, str]:
    """The comment above each flag of a script or YAML file; in a unit, the one that names it."""
    lines = [line.strip() for line in text.splitlines()]
    found: dict[str, str] = {}
    for above, line in itertools.pairwise(lines):
        flag = re.match(r'(?:- ")?(--?[A-Za-z][\w.-]*)', line)
        if flag and above.startswith("# "):
            found.setdefault(flag.group(1), above[2:])
        if named := re.match(r"# (--?[A-Za-z][\w.-]*): (.+)", line):
            found[named.group(1)] = named.group(2)
    return found


@pytest.mark.parametrize(("name", "form"), one_in(5, ALL, unpack=True))
def test_every_flag_carries_its_reason(name: str, form: str):
    """As the published guides do: one line a flag, in every form, short enough to read in a terminal."""
    deployment = deploy(recipes()[name])
    text = render(deployment, form)
    reasons = explained(text)
    words = load_engine(deployment.engine.name).arguments(deployment)
    flags_used = {word[0] for word in words if flags.is_flag(word[0])}

    assert flags_used
    assert {flag for flag in flags_used if not reasons.get(flag)} - {"--node-rank", "--master-addr"} == set()
    assert max(map(len, reasons.values())) <= 98


def test_a_reason_speaks_of_the_value_and_of_who_set_it():
    """On and off differ, whole numbers are named, a flag of the recipe's own says where it is from."""
    base = load_recipe("kimi-k26-vllm")
    on = explained(render(deploy(with_settings(base, {"prefix_caching": True})), "script"))
    off = explained(render(deploy(with_settings(base, {"prefix_caching": False})), "script"))
    own = explained(render(deploy(with_settings(base, {"flags.seed": 3, "flags.api-server-count": 2})), "script"))

    assert "not read again" in on["--enable-prefix-caching"]
    assert "no prefix cache" in off["--no-enable-prefix-caching"]
    assert "8 GPUs" in on["--tensor-parallel-size"]
    assert own["--api-server-count"] == "from [flags] of the recipe"
    assert "repeated" in own["--seed"]


def words_in(document: dict[str, Any]) -> list[list[str]]:
    """The command lines of a Compose or Kubernetes document."""
    if "services" in document:
        return [[*service.get("entrypoint", []), *service["command"]] for service in document["services"].values()]
    spec = document["spec"]
    pods = [spec.get("template")] if "template" in spec else list(spec.get("leaderWorkerTemplate", {}).values())
    found = [pod["spec"]["containers"][0] for pod in pods if isinstance(pod, dict)]
    return [[*one.get("command", []), *one["args"]] for one in found]


@pytest.mark.parametrize(("name", "form"), one_in(3, [one for one in ALL if one[1] in ("compose", "k8s")], unpack=True))
def test_flags_in_yaml_are_the_engines_own(name: str, form: str):
    """The rendered command line is read back and checked against the catalogue."""
    recipe = recipes()[name]
    known = flags.flag_catalogue(recipe.engine)
    for document in yaml.safe_load_all(render(deploy(recipe), form)):
        for argv in words_in(document):
            words = [word for word in split_argv(_after_entry(argv), known) if flags.is_flag(word[0])]
            flags.check_arguments(recipe.engine, "", words)
            assert len(words) > 8


def _after_entry(argv: list[str]) -> list[str]:
    """What follows the model, which is what the engine's own flags begin with."""
    place = next(
        place for place, word in enumerate(argv) if word.startswith("--") or (word == "-m" and "." in argv[place + 1])
    )
    return argv[place:] if argv[place] != "-m" or argv[place + 1].startswith(("/", "$")) else argv[place + 2 :]


def test_a_leader_worker_set_gives_each_pod_its_rank():
    """The group's variables stand in the arguments; only the leader has a port."""
    recipe = recipes()["two-nodes"]
    group, service, policy, weights = yaml.safe_load_all(render(deploy(recipe), "k8s"))
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
    assert policy["spec"]["podSelector"] == {"matchLabels": {"app": "kimi-k26-vllm"}}
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {}}, {"namespaceSelector": monitoring}]
    assert weights["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_unit_has_one_start_line_with_the_engines_flags():
    """systemd's continuation lines join to the launch; percent and dollar signs are doubled."""
    recipe = with_settings(load_recipe("kimi-k26-vllm"), {"flags.chat-template": "/100%/$x.jinja"})
    text = render(deploy(recipe), "systemd").replace("\\\n", " ")
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(start.removeprefix("ExecStart="))

    assert words[:4] == ["/usr/bin/env", "vllm", "serve", "${MODEL_PATH}"]
    assert "/100%%/$$x.jinja" in words
    flags.check_arguments("vllm", "", split_argv(words[4:], flags.flag_catalogue("vllm")))


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
        render(deploy(with_settings(load_recipe(name), changes)), form)


KEPT = {"kv_tiers": {"ram_gib": 1000, "disk_gib": 32}}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("mainline", form) for form in ("script", "slurm", "systemd", "docker", "compose")),
        ("kimi-k26-vllm", "script"),
        ("kimi-k26-vllm", "k8s"),
        ("kimi-k26-sglang", "script"),
        ("kimi-k26-sglang", "systemd"),
    ],
)
def test_a_kv_store_is_in_the_home_of_who_runs_the_file(name: str, form: Any, monkeypatch: pytest.MonkeyPatch):
    """Not in that of who rendered it; the folder is made, and each flag and variable of the tiers has its reason."""
    monkeypatch.setenv("HOME", "/home/planner")
    deployment = deploy(with_settings(recipes()[name], KEPT))
    text = render(deployment, form)
    words = load_engine(deployment.engine.name).arguments(deployment)
    store, reasons = PurePosixPath(store_folder(deployment)).name, explained(text)

    assert "/home/planner" not in text
    assert "~/" not in text.replace('- "~/.cache', "")  # Compose expands it
    assert "\0" not in text
    assert {word[0] for word in words if flags.is_flag(word[0]) and not reasons.get(word[0])} == set()
    assert all(variable_reason(deployment, name) for name in build_launch(deployment).env)
    made = {
        "systemd": f"mkdir -p %h/.cache/moebox/kv/{store}",
        "k8s": f'name: kv, mountPath: "/root/.cache/moebox/kv/{store}"',
    }
    if form != "compose":  # docker makes the folders of mounts
        assert made.get(form, f'mkdir -p "$HOME"/.cache/moebox/kv/{store}') in text


def test_a_folder_with_spaces_is_one_word_of_a_unit():
    """systemd splits words at spaces and expands $ and %."""
    recipe = with_settings(recipes()["mainline"], KEPT | {"kv_tiers.folder": "/nvme/my 50% $kv"})
    (line,) = [line for line in render(deploy(recipe), "systemd").splitlines() if "mkdir" in line]
    assert ' mkdir -p "/nvme/my 50%% $$kv/' in line


def test_no_form_names_moebox_at_run_time():
    """Nothing rendered calls moebox; the name may stand in a volume or a comment only."""
    for name, form in ALL:
        text = render(deploy(recipes()[name]), form)
        lines = [line for line in text.splitlines() if "moebox" in line and not line.lstrip().startswith("#")]
        assert all("moebox-jit-" in line for line in lines), (name, form, lines)


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`moebox render NAME --as compose -o FILE` writes it; `--json` tells the rest."""
    out = tmp_path / "compose.yaml"

    assert main(["render", "kimi-k26-vllm", "--as", "compose", "-o", str(out), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["text"] == out.read_text()
    assert main(["render", "nosuch"]) == 2
    (tmp_path / "taken").write_text("a file")
    assert main(["render", "kimi-k26-vllm", "-o", str(tmp_path / "taken" / "run.sh")]) == 2
    error = capsys.readouterr().err
    assert "no recipe 'nosuch'" in error


def test_downloads_of_llama_cpp_survive_the_container():
    """It keeps them in a folder of its own, not in the Hub's cache: 494 GB were fetched again at every start."""
    recipe = load_recipe("kimi-k26-ik")
    inside = with_settings(recipe, {"runtime.kind": "docker", "runtime.image": "ik:1"})
    launched = build_launch(deploy(inside))
    (target,) = launched.mounts.values()
    assert launched.env["LLAMA_CACHE"].startswith(f"{target}/")
    pods = render(deploy(recipe), "k8s")
    assert 'name: "LLAMA_CACHE", value: "/models/ik_llama.cpp"' in pods
    assert "LLAMA_CACHE" not in render(deploy(recipe), "script")
    assert (
        "LLAMA_CACHE" not in build_launch(deploy(with_settings(inside, {"checkpoint": str(phantom.gguf_path())}))).env
    )
