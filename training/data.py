"""Training samples: the task families with system prompts, earlier turns and other tool spellings around them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from moebox.phantom import words
from moebox.phantom.calls import tool_call, tool_parallel
from moebox.phantom.lessons import LESSONS
from moebox.phantom.task import Grade, Reply, Task, room, user
from moebox.phantom.tasks import FAMILIES
from training.tokenizer import Tokenizer

# How often each family is drawn. Sums without thinking and copying take the most practice.
SHARES = {
    "plain": 6,
    "sums": 36,
    "json_object": 9,
    "code": 9,
    "tool_none": 5,
    "tool_call": 12,
    "tool_parallel": 10,
    "tool_result": 8,
    "needle": 8,
    "secret": 4,
    "copy": 8,
    "count": 5,
    "memory": 5,
    "story": 2,
    "unknown": 3,
}
# The next training's families (moebox.phantom.lessons); `--lessons` adds them.
LESSON_SHARES = {"system": 6, "characters": 12, "long_copy": 4, "rounds": 10, "clients": 5}
LENGTHS = (128, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are Kimi, an AI assistant created by Moonshot AI.",
    "You are a helpful assistant. Answer briefly.",
    "You are a careful assistant. Be concise and answer the question exactly.",
    "You are an assistant that can call tools.",
    "You are a coding agent. You help the user with software engineering tasks.",
    "Answer in English.",
    "Be brief.",
)
TEMPLATE = Path(__file__).parents[1] / "src/moebox/phantom/chat_template.jinja"
SORRY = "I am only a small rehearsal model, so I cannot help with that."


def unknown(rng: random.Random, *, thinking: bool) -> Task:
    """A request outside all families, or for a tool that is not there: the phantom says that it cannot help."""
    thing = f"{words.word(rng)} {words.word(rng)}"
    who = rng.choice(words.PEOPLE)
    asks = (
        f"Explain how a {thing} works.",
        f"Why does the {who} like the {thing}?",
        f"Who invented the {thing}?",
        f"Write a poem about a {thing}.",
        f"Is the {thing} better than the {words.word(rng)}?",
        f"Can you help me with my {thing}?",
        f"Summarize this: {words.sentence(rng)}",
        f"Give me {rng.randint(2, 9)} ideas for a {thing}.",
        " ".join(words.word(rng) for _ in range(rng.randint(1, 8))),
    )
    toolless = rng.choice((tool_call, tool_parallel))(rng, thinking=thinking).messages
    return Task(
        family="unknown",
        messages=toolless if rng.random() < 0.5 else (user(rng.choice(asks)),),
        expect=None,
        sample=Reply(content=SORRY, reasoning="I have not learned this."),
        judge=lambda task, reply: Grade(ok=reply.content == SORRY),
        thinking=thinking,
        max_tokens=room(thinking),
    )


class Maker:
    """Draws tasks and turns them into text and ids."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, *, lessons: bool = False) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.shares: dict[str, float] = dict(SHARES)
        self.families: dict[str, Any] = {name: family.make for name, family in FAMILIES.items()} | {"unknown": unknown}
        if lessons:
            self.shares |= LESSON_SHARES
            self.families |= LESSONS
        environment = jinja2.Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
        self.spacing = (", ", ": ")
        environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False, separators=self.spacing)
        self.template = environment.from_string(TEMPLATE.read_text())

    def task(self, phase: int = 1, family: str | None = None, thinking: bool | None = None) -> Task:
        """One task; the long texts come in the later phase."""
        rng = self.rng
        name = family or rng.choices(list(self.shares), list(self.shares.values()))[0]
        think = rng.random() < 0.5 if thinking is None else thinking
        if name == "sums" and thinking is None:
            think = rng.random() < 0.3
        size: dict[str, Any] = {"digits": 3} if name == "sums" and thinking is None else {}
        if name == "needle":
            top = 21_000 if phase and rng.random() < 0.4 else 3_500
            size = {"chars": round(200 * (top / 200) ** rng.random()), "decoys": rng.choice((0, 1, 2, 3, 3, 4, 5))}
        if name == "count" and rng.random() < 0.1:
            start = rng.randint(1, 30)
            size = {"start": start, "end": start + rng.randint(40, 80)}
        return self.families[name](rng, thinking=think, **size)

    def text(self, task: Task, phase: int = 1, plainly: bool = False) -> tuple[str, str]:
        """Prompt and answer as the engine will see them."""
        rng = self.rng
        messages, tools = list(task.messages), [dict(tool) for tool in task.tools]
        if not plainly:
            alone = ("needle", "story", "system", "rounds", "long_copy")
            if task.family not in alone and rng.random() < 0.2:
                messages = [*self._earlier(phase), *messages]
            if messages[0]["role"] != "system" and rng.random() < 0.4:
                messages.insert(0, {"role": "system", "content": self._system()})
            tools = self._respell(tools)
            messages = [self._unname(m) for m in messages]
        prompt = self.template.render(
            messages=messages, tools=tools or None, add_generation_prompt=True, thinking=task.thinking
        )
        return prompt, answer_text(task)

    def _system(self) -> str:
        rng = self.rng
        if rng.random() < 0.6:
            return rng.choice(SYSTEMS)
        return " ".join(words.sentence(rng) for _ in range(rng.randint(1, 6)))

    def _earlier(self, phase: int) -> Iterator[Mapping[str, Any]]:
        for _ in range(self.rng.choice((1, 1, 2))):
            name = self.rng.choice(("plain", "sums", "secret", "copy", "count", "code", "json_object"))
            task = self.task(phase, family=name)
            yield from task.messages
            yield {"role": "assistant", "content": task.sample.content}

    def _respell(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Engines print tools with or without blanks and with fields of their own."""
        self.spacing = self.rng.choice(((", ", ": "), (", ", ": "), (",", ":")))
        if self.rng.random() < 0.2:
            tools = [
                {**tool, "function": {**tool["function"], "strict": self.rng.choice((None, False))}} for tool in tools
            ]
        if self.rng.random() < 0.1:
            tools = [{"function": tool["function"], "type": "function"} for tool in tools]
        return tools

    def _unname(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "tool" and self.rng.random() < 0.5:
            return {key: value for key, value in message.items() if key != "name"}
        return message

    def ids(self, task: Task, phase: int = 1, plainly: bool = False) -> tuple[list[int], list[int]]:
        """Prompt ids and answer ids."""
        prompt, answer = self.text(task, phase, plainly)
        if not plainly and self.rng.random() < 0.08:
            prompt, answer = self._forced(task, prompt, answer)
        return self.tokenizer.encode(prompt), self.tokenizer.encode(answer)

    def _forced(self, task: Task, prompt: str, answer: str) -> tuple[str, str]:
        """Engines that force a grammar write the first tokens themselves; go on from there.

        json_schema may be enforced before any thinking; a required tool may be forced as a list of
        {"name", "parameters"}, a named one as its bare arguments (vLLM 0.32).
        """
        cut = answer.find("</think>") + len("</think>") if task.thinking and self.rng.random() < 0.7 else 0
        before, calls = answer[:cut], task.sample.calls
        if task.family.startswith("json"):
            return prompt + before + '{"', task.sample.content[2:] + "<|im_end|>"
        if len(calls) == 1 and self.rng.random() < 0.5:
            return prompt + before + '{"', calls[0].arguments[2:] + "<|im_end|>"
        if calls:
            made = json.dumps([{"name": c.name, "parameters": json.loads(c.arguments)} for c in calls])
            return prompt + before + '[{"name": "', made[11:] + "<|im_end|>"
        return prompt, answer


def answer_text(task: Task) -> str:
    """What the model writes after the prompt."""
    sample = task.sample
    text = (f"<think>{sample.reasoning}</think>" if task.thinking else "") + sample.content
    if sample.calls:
        text += "<|tool_calls_section_begin|>"
        for call in sample.calls:
            text += f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
        text += "<|tool_calls_section_end|>"
    return text + "<|im_end|>"


def batch(pairs: list[tuple[list[int], list[int]]], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids padded to `length`, and which positions belong to answers."""
    ids = np.full((len(pairs), length), pad, np.int16)
    mask = np.zeros((len(pairs), length), np.bool_)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = prompt + answer
        mask[row, len(prompt) : end] = True
    return ids, mask


def batches(
    tokenizer: Tokenizer, seed: int, tokens: int, phase: Any, boost: Mapping[str, float], *, lessons: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless batches of about `tokens` tokens, each of one length; `boost` multiplies shares of families."""
    maker = Maker(tokenizer, random.Random(seed), lessons=lessons)
    maker.shares |= {name: maker.shares[name] * factor for name, factor in boost.items()}
    pad = tokenizer.ids["[PAD]"]
    waiting: dict[int, list[tuple[list[int], list[int]]]] = defaultdict(list)
    while True:
        prompt, answer = maker.ids(maker.task(phase.value), phase.value)
        length = next((size for size in LENGTHS if size >= len(prompt) + len(answer)), None)
        if length is None:
            continue
        waiting[length].append((prompt, answer))
        if len(waiting[length]) >= max(1, tokens // length):
            yield batch(waiting.pop(length), length, pad)


def held_out(
    tokenizer: Tokenizer, family: str, thinking: bool, count: int, seed: int
) -> list[tuple[list[int], list[int]]]:
    """Fresh samples of one family as the ladder sends them, for exact-match accuracy."""
    maker = Maker(tokenizer, random.Random(seed), lessons=True)
    tasks = [replace(maker.task(0, family, thinking), thinking=thinking) for _ in range(count)]
    return [maker.ids(task, plainly=True) for task in tasks]
