"""A draft in a recipe whose engine takes none does not get into its launch files."""

from moebox.checkpoint import deploy
from moebox.core.change import changed
from moebox.render import render
from tests.serve.rendered import recipes


def test_a_draft_beside_kt_kernel_leaves_the_entry_whole() -> None:
    """The words of the draft were in the launch and not in the file's arguments: the entry was cut in the middle."""
    recipe = recipes()["experts-in-ram"]
    drafting = changed(recipe, {"speculate": {"method": "eagle3", "draft": "a/draft", "tokens": 2}})

    assert render(deploy(drafting), "script") == render(deploy(recipe), "script")
