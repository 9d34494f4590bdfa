"""Rendered fleets: every router and form is well formed, names every member once, and holds no secret."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from moebox.cli import main
from moebox.errors import BadInput, Unsupported
from moebox_fleet.file import RouterKind
from moebox_fleet.render import FleetFormat, render_fleet
from tests import shellcheck

TWO = '[[member]]\nname = "k26"\nrecipe = "kimi-k26-vllm"\ncount = 2\n'
KEYED = 'name = "team"\n[router]\nkey_env = "TEAM_KEY"\n'
KEYS = '[[member]]\nname = "a"\nurl = "http://10.0.0.1:8000"\nmodel = "m"\nkey_env = "TEAM_KEY"\n'


def fleet(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", get_args(FleetFormat))
@pytest.mark.parametrize("kind", get_args(RouterKind))
def test_every_router_in_every_form_is_well_formed(tmp_path: Path, kind: RouterKind, form: FleetFormat) -> None:
    path = fleet(tmp_path, f'name = "team"\n{TWO}')
    if kind == "litellm":  # it does not start without a key where others can reach it
        path = fleet(tmp_path, KEYED + TWO)
    for name, text in render_fleet(path, form, kind=kind).items():
        if name.endswith(".yaml"):
            assert all(yaml.safe_load_all(text))
        if name.endswith((".sh", ".sbatch")):
            assert shellcheck.complaints(text=text) == ""


def test_members_on_one_machine_get_ports_of_their_own_and_the_router_asks_each(tmp_path: Path) -> None:
    text = render_fleet(fleet(tmp_path, f'name = "team"\n{TWO}'), "router")["router.sh"]

    assert "--worker-urls http://127.0.0.1:8000 http://127.0.0.1:8001 " in text
    assert "--policy cache_aware" in text


def test_in_a_cluster_members_have_names_and_only_the_router_may_ask_them(tmp_path: Path) -> None:
    files = render_fleet(fleet(tmp_path, f'name = "team"\n{TWO}'), "k8s")
    objects = [one for one in yaml.safe_load_all(files["router.yaml"]) if one]
    command = next(one for one in objects if one["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]

    assert "http://k26-1:8000 http://k26-2:8001" in command["command"][-1]
    policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
    assert {one["spec"]["podSelector"]["matchLabels"]["app"] for one in policies} == {"k26-1", "k26-2"}
    assert yaml.safe_load(files["kustomization.yaml"])["resources"] == ["k26-1.yaml", "k26-2.yaml", "router.yaml"]


def test_the_slurm_script_fills_in_hosts_once_jobs_run(tmp_path: Path) -> None:
    text = render_fleet(fleet(tmp_path, f'name = "team"\n{TWO}'), "slurm")["fleet.sh"]

    assert '"http://$host_0:8000" "http://$host_1:8001"' in text
    assert "@k26" not in text


def test_no_key_stands_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "very-secret")
    path = fleet(tmp_path, KEYED + KEYS)
    for kind in get_args(RouterKind):
        for text in render_fleet(path, "router", kind=kind).values():
            assert "very-secret" not in text
    assert "os.environ/TEAM_KEY" in render_fleet(path, "router", kind="litellm")["litellm.yaml"]


def test_litellm_without_a_key_is_for_this_machine_alone(tmp_path: Path) -> None:
    path = fleet(tmp_path, f'name = "team"\n{TWO}')

    config = yaml.safe_load(render_fleet(path, "router", kind="litellm")["litellm.yaml"])
    assert config["general_settings"] == {"dangerously_permit_weak_or_unset_master_key": True}
    with pytest.raises(BadInput, match="LiteLLM does not start without a key"):
        render_fleet(path, "k8s", kind="litellm")


def test_what_a_router_cannot_do_is_one_line(tmp_path: Path) -> None:
    own = '[[member]]\nname = "b"\nurl = "http://10.0.0.2:8000"\nmodel = "m"\nkey_env = "OTHER"\n'
    with pytest.raises(Unsupported, match="members cannot have other keys"):
        render_fleet(fleet(tmp_path, KEYED + KEYS + own), "router")
    with pytest.raises(BadInput, match="needs a fixed port"):
        render_fleet(fleet(tmp_path, f'name = "t"\n[router]\nport = 0\n{TWO}'), "router")


def test_render_writes_a_folder_whose_scripts_can_be_run(tmp_path: Path) -> None:
    path = fleet(tmp_path, f'name = "team"\n{TWO}')

    assert main(["fleet", "render", str(path), "--as", "slurm", "-o", str(tmp_path / "out")]) == 0

    written = {file.name: file for file in (tmp_path / "out").iterdir()}
    assert sorted(written) == ["fleet.sh", "k26-1.sbatch", "k26-2.sbatch"]
    assert all(file.stat().st_mode & 0o100 for file in written.values())
