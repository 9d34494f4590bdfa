"""Training samples: the task families with system prompts, earlier turns and other tool spellings around them."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from moebox.phantom import vocabulary as words
from moebox.phantom.question import ModelReply, Question, user_message
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.phantom.text_questions import haystack_questions
from moebox.phantom.tool_questions import tool_call_question, tool_parallel_question
from training.errands import Errand, errand_task
from training.lessons import LESSONS
from training.tokenizer import Tokenizer

# How often each family is drawn at first; training follows what goes wrong (training.train).
SHARES: dict[str, float] = {
    "plain": 5,
    "sums": 14,
    "json_object": 8,
    "code": 7,
    "tool_none": 4,
    "tool_call": 9,
    "tool_parallel": 8,
    "tool_result": 7,
    "needle": 9,
    "needles": 9,
    "secret": 3,
    "copy": 6,
    "count": 4,
    "memory": 4,
    "story": 2,
    "unknown": 4,
    "system": 5,
    "characters": 8,
    "long_copy": 8,
    "rounds": 8,
    "clients": 8,
    "parts": 2,
    "back": 2,
    "shapes": 5,
    "invent": 1,
    "errand": 14,
    "babble": 0,  # made by `Maker.babble`, at its own rate
}
BABBLE = 0.03  # share of samples that go on where a conversation would have ended
FAMILY_NAMES = tuple(SHARES)
LENGTHS = (128, 192, 256, 320, 384, 512, 768, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192)
LONGEST_CHARS = 22_000  # of a text with needles: about 7,500 tokens
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


def unknown(rng: random.Random, *, thinking: bool) -> Question:
    """A request outside all families, or for a tool that is not there: the phantom says that it cannot help."""
    thing = f"{words.draw_word(rng)} {words.draw_word(rng)}"
    who = rng.choice(words.PEOPLE)
    asks = (
        f"Explain how a {thing} works.",
        f"Why does the {who} like the {thing}?",
        f"Who invented the {thing}?",
        f"Write a poem about a {thing}.",
        f"Is the {thing} better than the {words.draw_word(rng)}?",
        f"Can you help me with my {thing}?",
        f"Summarize this: {words.draw_sentence(rng)}",
        f"Give me {rng.randint(2, 9)} ideas for a {thing}.",
        " ".join(words.draw_word(rng) for _ in range(rng.randint(1, 8))),
    )
    toolless = rng.choice((tool_call_question, tool_parallel_question))(rng, thinking=thinking).messages
    return Question(
        family="unknown",
        messages=toolless if rng.random() < 0.5 else (user_message(rng.choice(asks)),),
        expect=None,
        sample=ModelReply(content=SORRY, reasoning="I have not learned this."),
        judge=lambda task, reply: "" if reply.content == SORRY else "not an apology",
        thinking=thinking,
    )


def needles(rng: random.Random, *, thinking: bool, chars: int) -> Drawn:
    """One text with many codes, and the question for each of them in turn; only the last may be thought about."""
    depths = sorted(deep(rng) for _ in range(rng.randint(2, 14)))
    tasks = haystack_questions(rng, chars=chars, depths=depths)
    rng.shuffle(tasks)
    messages: list[Mapping[str, Any]] = list(tasks[0].messages)
    for before, task in pairwise(tasks):
        text = str(task.messages[0]["content"])
        messages += [{"role": "assistant", "content": before.expect}, user_message(text[text.rindex("What is the") :])]
    last = tasks[-1]
    place = str(messages[-1]["content"]).rsplit("access code for the ", 1)[1].split("?")[0]
    thought = f"The text says the code for the {place} is {last.expect}."
    task = replace(
        last,
        family="needles",
        messages=tuple(messages),
        thinking=thinking,
        sample=ModelReply(content=last.expect, reasoning=thought),
    )
    return Drawn(task=task, learn=(not thinking,) * (len(tasks) - 1) + (True,))


def deep(rng: random.Random) -> float:
    """A depth; the very beginning, which is the hardest, more often than its share."""
    return rng.choice((0.0, 0.06 * rng.random(), rng.random(), rng.random(), rng.random(), 1 - 0.1 * rng.random()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A task, and which of its assistant's turns are learned: the last `len(learn)` of them, the sample included."""

    task: Question
    learn: tuple[bool, ...] = (True,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Ids of a whole conversation, and which of them are to be learned."""

    family: str
    ids: list[int]
    mask: list[bool]


class Maker:
    """Draws tasks and turns them into text and ids."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.shares = dict(SHARES)
        self.families: dict[str, Any] = dict(FAMILIES)
        self.families |= {**LESSONS, "unknown": unknown, "needles": needles, "errand": errand_task}
        environment = jinja2.Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
        self.spacing = (", ", ": ")
        environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False, separators=self.spacing)
        self.template = environment.from_string(TEMPLATE.read_text())

    def draw(self, phase: int = 1, family: str | None = None, thinking: bool | None = None) -> Drawn:
        """One task; the long texts come in the later phase."""
        rng = self.rng
        name = family or rng.choices(list(self.shares), list(self.shares.values()))[0]
        think = rng.random() < 0.5 if thinking is None else thinking
        made = self.families[name](rng, thinking=think, **self._size(name, phase, freely=thinking is None))
        if isinstance(made, Errand):
            return Drawn(task=made.task, learn=made.learn)
        if isinstance(made, Drawn):
            return made
        if name == "rounds" and not think:
            turns = sum(message["role"] == "assistant" for message in made.messages)
            return Drawn(task=made, learn=(True,) * (turns + 1))
        return Drawn(task=made)

    def _size(self, name: str, phase: int, *, freely: bool) -> dict[str, Any]:
        rng = self.rng
        if name == "sums" and freely and rng.random() < 0.15:
            return {"digits": 3}
        if name in ("needle", "needles"):
            top = LONGEST_CHARS if phase and rng.random() < 0.5 else 3_500
            chars = {"chars": round(200 * (top / 200) ** rng.random())}
            if phase and rng.random() < 0.15:
                chars = {"chars": rng.randint(10_000, LONGEST_CHARS)}
            decoys = {"depth": deep(rng), "decoys": rng.choice((0, 1, 2, 3, 3, 4, 5, 8, 12, 19))}
            return chars if name == "needles" else chars | decoys
        if name == "long_copy" and not phase:
            return {"length": rng.randint(11, 150)}
        if name == "count" and rng.random() < 0.1:
            start = rng.randint(1, 30)
            return {"start": start, "end": start + rng.randint(40, 80)}
        return {}

    def text(self, task: Question, phase: int = 1, plainly: bool = False) -> tuple[str, str]:
        """Prompt and answer as the engine will see them."""
        rng = self.rng
        messages, tools = list(task.messages), [dict(tool) for tool in task.tools]
        self.spacing = (", ", ": ")
        if not plainly:
            alone = ("needle", "needles", "story", "system", "rounds", "long_copy", "errand", "parts")
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
        return " ".join(words.draw_sentence(rng) for _ in range(rng.randint(1, 6)))

    def _earlier(self, phase: int) -> Iterator[Mapping[str, Any]]:
        for _ in range(self.rng.choice((1, 1, 2))):
            name = self.rng.choice(("plain", "sums", "secret", "copy", "count", "code", "json_object"))
            task = self.draw(phase, family=name).task
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

    def sample(self, drawn: Drawn, phase: int = 1, plainly: bool = False) -> Sample:
        """Ids, and which of them are learned."""
        task = drawn.task
        prompt, answer = self.text(task, phase, plainly)
        if not plainly and len(drawn.learn) == 1 and self.rng.random() < 0.08:
            prompt, answer = self._forced(task, prompt, answer)
        ids: list[int] = []
        mask: list[bool] = []
        for text, learn in (*spans(prompt, drawn.learn[:-1], thinking=task.thinking), (answer, drawn.learn[-1])):
            piece = self.tokenizer.encode(text)
            ids += piece
            mask += [learn] * len(piece)
        return Sample(family=task.family, ids=ids, mask=mask)

    def babble(self, phase: int = 1) -> Sample:
        """Words without end, after tokens at random, after any text, or after an answer that was not let end.

        Benchmarks send such prompts and forbid the end (`ignore_eos`): whatever comes must still be text, because
        llama.cpp fails a request whose reply is not UTF-8.
        """
        rng, ids = self.rng, []
        kind = rng.choice(("tokens", "words", "chat", "chat"))
        if kind == "tokens":
            ids = [rng.randrange(len(self.tokenizer.tokens)) for _ in range(rng.randint(4, 900))]
        elif kind == "words":
            ids = self.tokenizer.encode(" ".join(words.draw_word(rng) for _ in range(rng.randint(4, 300))))
        else:
            ids = self.sample(self.draw(phase, family=rng.choice(("unknown", "copy", "plain", "count")))).ids[:-1]
            ids += [rng.randrange(len(self.tokenizer.tokens)) for _ in range(rng.randint(1, 3))]
        tail = self.tokenizer.encode(" " + " ".join(words.draw_word(rng) for _ in range(rng.randint(20, 60))))
        return Sample(family="babble", ids=ids + tail, mask=[False] * len(ids) + [True] * len(tail))

    def _forced(self, task: Question, prompt: str, answer: str) -> tuple[str, str]:
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
            named = [{"name": c.name, "parameters": json.loads(c.arguments)} for c in calls]
            made = json.dumps(named, ensure_ascii=False)
            return prompt + before + '[{"name": "', made[11:] + "<|im_end|>"
        return prompt, answer


def answer_text(task: Question) -> str:
    """What the model writes after the prompt."""
    sample = task.sample
    text = (f"<think>{sample.reasoning}</think>" if task.thinking else "") + sample.content
    if sample.calls:
        text += "<|tool_calls_section_begin|>"
        for call in sample.calls:
            text += f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
        text += "<|tool_calls_section_end|>"
    return text + "<|im_end|>"


_TURN = re.compile(r"(?<=<\|im_assistant\|>assistant<\|im_middle\|>)(.*?<\|im_end\|>)", re.DOTALL)


def spans(prompt: str, learn: tuple[bool, ...], *, thinking: bool) -> Iterator[tuple[str, bool]]:
    """The prompt in pieces; what the assistant said in its last `len(learn)` turns is learned where `learn` says so.

    An empty thought is the prompt's where thinking is off, and the model's own where it is on.
    """
    turns = list(_TURN.finditer(prompt))
    at = 0
    for turn, learned in zip(turns[len(turns) - len(learn) :], learn, strict=True):
        start = turn.start() + (0 if thinking else len("<think></think>"))
        yield prompt[at:start], False
        yield prompt[start : turn.end()], learned
        at = turn.end()
    yield prompt[at:], False


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rows of ids padded to one length, which positions are learned, and each row's family (of FAMILY_NAMES)."""

    ids: np.ndarray
    mask: np.ndarray
    families: np.ndarray


def batch(samples: list[Sample], length: int, pad: int) -> Batch:
    """Samples as one array."""
    ids = np.full((len(samples), length), pad, np.int16)
    mask = np.zeros((len(samples), length), np.bool_)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = sample.ids
        mask[row, : len(sample.ids)] = sample.mask
    # json_schema is json_object with a grammar: the text is the same
    families = np.array([FAMILY_NAMES.index(sample.family) for sample in samples], np.int64)
    return Batch(ids=ids, mask=mask, families=families)


def batches(tokenizer: Tokenizer, seed: int, tokens: int, phase: Any, boost: Any) -> Iterator[Batch]:
    """Endless batches of about `tokens` tokens, each of one length; `boost` multiplies shares, family by family."""
    maker = Maker(tokenizer, random.Random(seed))
    pad = tokenizer.ids["[PAD]"]
    waiting: dict[int, list[Sample]] = defaultdict(list)
    while True:
        maker.shares = {name: share * boost[place] for place, (name, share) in enumerate(SHARES.items())}
        if maker.rng.random() < BABBLE:
            sample = maker.babble(phase.value)
        else:
            sample = maker.sample(maker.draw(phase.value), phase.value)
        length = next((size for size in LENGTHS if size >= len(sample.ids)), None)
        if length is None:
            continue
        waiting[length].append(sample)
        if len(waiting[length]) >= max(1, tokens // length):
            yield batch(waiting.pop(length), length, pad)


def held_out(tokenizer: Tokenizer, family: str, thinking: bool, count: int, seed: int) -> list[Sample]:
    """Fresh samples of one family as they are asked for, for exact-match accuracy; long texts among them."""
    maker = Maker(tokenizer, random.Random(seed))
    samples: list[Sample] = []
    while len(samples) < count:
        sample = maker.sample(maker.draw(1, family, thinking), plainly=True)
        if len(sample.ids) <= LENGTHS[-1]:
            samples.append(sample)
    return samples
