"""`runtime.options` in Compose and Kubernetes: each is written, or refused by the option's name."""

import dataclasses
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moebox.checkpoint import deploy
from moebox.core.recipe import Recipe
from moebox.core.validation import OPTIONS
from moebox.errors import BadInput
from moebox.render import LaunchFormat, render
from moebox.render.options import FLAGS, LISTS, NUMBERS, TEXTS
from tests.serve.rendered import recipes
from tests.siege import readback

BASE = "kimi-k26-vllm"


def recipe_with(*options: str) -> Recipe:
    """Return a recipe with these container options."""
    recipe = recipes()[BASE]
    return dataclasses.replace(recipe, runtime=dataclasses.replace(recipe.runtime, kind="docker", options=options))


def render_with(file_format: LaunchFormat, *options: str) -> str:
    """Return the launch file of a recipe with these options."""
    return render(deploy(recipe_with(*options)), file_format)


def compose_service(*options: str) -> dict[str, object]:
    """Return the only service of the Compose file."""
    text = render_with("compose", *options)
    readback.compose(text)
    (found,) = yaml.safe_load(text)["services"].values()
    return dict(found)


def test_options_reach_the_compose_file() -> None:
    """Limits, user, log and devices of the container are those of the recipe."""
    options = ("--shm-size", "16g", "--ulimit=memlock=-1", "--ulimit", "stack=67108864:-1", "--ipc=private", "--init")
    options += ("--cap-add", "SYS_NICE", "--cap-add=IPC_LOCK", "--user", "1000:1000", "--restart=on-failure:3")
    options += ("--log-driver", "local", "--log-opt", "max-size=10m", "--stop-timeout", "90", "--pids-limit=-1")
    options += ("--device=/dev/infiniband", "--label", "team=moe")
    found = compose_service(*options)

    assert found["shm_size"] == "16g"
    assert found["ulimits"] == {"memlock": -1, "stack": {"soft": 67108864, "hard": -1}}
    assert (found["ipc"], found["init"], found["pids_limit"]) == ("private", True, -1)
    assert found["cap_add"] == ["SYS_NICE", "IPC_LOCK"]
    assert (found["user"], found["restart"], found["stop_grace_period"]) == ("1000:1000", "on-failure:3", "90s")
    assert found["logging"] == {"driver": "local", "options": {"max-size": "10m"}}
    assert found["devices"] == ["/dev/infiniband:/dev/infiniband"]


def test_without_options_the_file_has_the_defaults() -> None:
    """Shared memory, restarts and the time to stop have defaults."""
    found = compose_service()

    assert (found["ipc"], found["restart"], found["stop_grace_period"]) == ("host", "unless-stopped", "60s")


@pytest.mark.parametrize(
    "option", ["--cpuset-mems=0", "--userns=keep-id", "--gpus=2", "--network=none", "--pull=newer"]
)
def test_an_option_that_compose_lacks_is_refused_by_name(option: str) -> None:
    """The same option is accepted for a docker command."""
    with pytest.raises(BadInput, match=re.escape(f"compose has no counterpart of {option}")):
        render_with("compose", option)
    render_with("docker", option)


def test_kubernetes_takes_shared_memory_and_refuses_the_rest_by_name() -> None:
    """Limits, users and restarts of a pod are set in other ways."""
    text = render_with("k8s", "--shm-size=64g", "--ipc=host", "--gpus", "all")

    readback.kubernetes(text)
    assert "sizeLimit: 64Gi" in text
    for option in ("--ulimit=memlock=-1", "--memory=1g", "--init", "--user=1000"):
        with pytest.raises(BadInput, match=re.escape(f"k8s has no counterpart of {option}")):
            render_with("k8s", option)


@given(st.data())
def test_any_option_is_in_the_file_or_refused_by_its_name(data: st.DataObject) -> None:
    """Each option of the grammar is either written or refused."""
    name = data.draw(st.sampled_from(sorted(OPTIONS)))
    value = data.draw(st.from_regex(re.compile(OPTIONS[name], re.ASCII), fullmatch=True)) if OPTIONS[name] else ""
    word = f"{name}={value}" if value else name
    try:
        found = compose_service(word)
    except BadInput as problem:
        assert name in problem.message
        assert "\n" not in problem.message
        return
    key = TEXTS.get(name) or NUMBERS.get(name) or FLAGS.get(name) or LISTS.get(name)
    if key in TEXTS.values():
        assert readback.interpolated(str(found[key])) == value
    elif key in LISTS.values():
        assert found[key] == [value]
    elif key is not None:
        assert found[key] == (int(value) if value else True)
