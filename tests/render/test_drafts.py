"""Drafts in launch files: whole where the engine takes them, and nowhere else."""

from moebox.checkpoint import deploy
from moebox.core.change import changed
from moebox.render import render
from moebox.render.pieces import MARK
from tests.serve.rendered import recipes
from tests.siege import readback


def test_a_draft_beside_kt_kernel_leaves_the_entry_whole() -> None:
    """The words of the draft were in the launch and not in the file's arguments: the entry was cut in the middle."""
    recipe = recipes()["experts-in-ram"]
    drafting = changed(recipe, {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 2}})

    assert render(deploy(drafting), "script") == render(deploy(recipe), "script")


def test_a_draft_called_like_our_own_mark_is_still_that_draft() -> None:
    """In a file without variables the mark stands for nothing."""
    name = f"/data/{MARK}"
    drafting = changed(recipes()["kimi-k26-vllm"], {"speculate": {"method": "eagle3", "draft": name, "tokens": 2}})
    words = readback.kubernetes(render(deploy(drafting), "k8s"))

    assert sum(f'"model":"{name}"' in word for word in words) == 1
