"""How many tools the checks shows a server: no more than its context holds."""

import asyncio
from dataclasses import dataclass, field

import pytest

from moebox.verify.checks import prompts
from moebox.verify.session import ProbeSkipped


@dataclass
class Counting:
    """An asker whose server takes `tool` tokens for each tool and 50 for the rest."""

    context_limit: int | None
    tool: int
    asked: list[int] = field(default_factory=list)

    async def chat(self, messages: object, *, tools: list[object], **more: object) -> "Counting":
        self.asked.append(len(tools))
        return self

    def token_count(self, what: str) -> int:
        return 50 + self.tool * self.asked[-1]


@pytest.mark.parametrize(
    ("limit", "tool", "many"), [(None, 100, 24), (131072, 100, 24), (8192, 100, 24), (4096, 100, 15), (2048, 100, 7)]
)
def test_a_short_context_is_shown_fewer_tools(limit: int | None, tool: int, many: int) -> None:
    """24 tools are 2,305 tokens of Kimi's template: a server with 2,048 refused them and was called broken."""
    ask = Counting(context_limit=limit, tool=tool)
    shown = asyncio.run(prompts.tools_that_fit(ask, [object()] * 24))  # type: ignore[arg-type]
    assert len(shown) == many
    assert not limit or 50 + tool * len(shown) < limit


def test_a_context_that_holds_hardly_any_is_not_asked() -> None:
    """Skipped, not failed."""
    with pytest.raises(ProbeSkipped, match=r"a context of 512 tokens holds 1 tool$"):
        asyncio.run(prompts.tools_that_fit(Counting(context_limit=512, tool=100), [object()] * 24))  # type: ignore[arg-type]
