#!/usr/bin/env python3
"""Make an OpenAI-compatible server prove that it is alive: language, arithmetic, code, JSON and a tool call.

    python3 scripts/smoke_test_openai.py --base-url http://127.0.0.1:8000/v1 --model Kimi-K2.6

Standard library only. Code that the model writes is parsed, never run. Exit code 0: all passed; 1: one failed;
3: the server cannot be reached. The key, if the server wants one, is read from $OPENAI_API_KEY.
"""

import argparse
import ast
import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.request

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Unreachable(Exception):
    """The server did not answer, or not with what it should."""


def main() -> int:
    """Run every probe and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="ends in /v1")
    parser.add_argument("--model", default="", help="served name; the first of /v1/models otherwise")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    parser.add_argument("--max-tokens", type=int, default=4096, help="a model that thinks needs room to")
    asked = parser.parse_args()
    ask = Asker(asked)
    failed = 0
    try:
        ask.model = asked.model or ask.first_model()
        for name, probe in PROBES.items():
            begun = time.monotonic()
            passed, seen = probe(ask)
            failed += not passed
            print(f"{'pass' if passed else 'FAIL'}  {name:<11} {time.monotonic() - begun:6.1f} s  {seen[:160]}")
    except Unreachable as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 3
    print(f"{len(PROBES) - failed} of {len(PROBES)} passed: {ask.model} at {asked.base_url}")
    return 1 if failed else 0


class Asker:
    """One server, asked over and over."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.model = asked.model

    def first_model(self) -> str:
        """The name the server gives its model."""
        models = self.call("/models").get("data") or []
        if not models:
            raise Unreachable(f"{self.asked.base_url}/models lists no model")
        return str(models[0]["id"])

    def message(self, text: str, **more: object) -> dict:
        """The assistant's message to one question."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        body["max_tokens"] = self.asked.max_tokens
        answer = self.call("/chat/completions", body | more)
        try:
            return answer["choices"][0]["message"]
        except (KeyError, IndexError, TypeError):
            raise Unreachable(f"no message in the answer: {json.dumps(answer)[:200]}") from None

    def call(self, path: str, body: dict | None = None) -> dict:
        """One request; its JSON."""
        url = self.asked.base_url.rstrip("/") + path
        if not url.startswith(("http://", "https://")):
            raise Unreachable(f"{url} is no http address")
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  (checked above)
        try:
            with urllib.request.urlopen(request, timeout=self.asked.timeout) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as problem:
            said = problem.read(300).decode(errors="replace")
            raise Unreachable(f"{url} answered {problem.code}: {said}") from None
        except (OSError, ValueError) as problem:
            raise Unreachable(f"{url}: {problem}") from None


def text_of(message: dict) -> str:
    """What was said, without what was thought."""
    return re.sub(r"^.*</think>", "", message.get("content") or "", flags=re.DOTALL).strip()


def language(ask: Asker) -> tuple[bool, str]:
    """Plain words, with nothing of the template in them."""
    said = text_of(ask.message("In one sentence: why is the sky blue?"))
    words = re.findall(r"[A-Za-z]{2,}", said)
    clean = "<|" not in said and len(words) >= 5 and len(set(words)) > len(words) // 4
    return clean and "scatter" in said.lower(), said


def arithmetic(ask: Asker) -> tuple[bool, str]:
    """A product that nobody has memorised."""
    a, b = random.randrange(12, 99), random.randrange(12, 99)
    said = text_of(ask.message(f"What is {a} times {b}? Answer with the number alone."))
    return str(a * b) in said.replace(",", ""), f"{a} × {b} = {said}"


def code(ask: Asker) -> tuple[bool, str]:
    """A function that parses and has the asked name and arguments."""
    said = text_of(ask.message("Write a Python function fibonacci(n) that returns the n-th number. Only the code."))
    fenced = re.search(r"```(?:python)?\n(.*?)```", said, re.DOTALL)
    try:
        tree = ast.parse(fenced.group(1) if fenced else said)
    except SyntaxError as problem:
        return False, f"does not parse: {problem.msg}"
    named = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "fibonacci"]
    return bool(named) and len(named[0].args.args) >= 1, "fibonacci(n) parses" if named else "no function fibonacci"


def structure(ask: Asker) -> tuple[bool, str]:
    """An object with the asked keys and types."""
    said = text_of(ask.message('Answer only with JSON: {"city": "Paris", "population": <its number as an integer>}'))
    found = re.search(r"\{.*\}", said, re.DOTALL)
    try:
        given = json.loads(found.group(0)) if found else None
    except ValueError:
        return False, f"no JSON: {said}"
    right = isinstance(given, dict) and given.get("city") == "Paris" and isinstance(given.get("population"), int)
    return right, json.dumps(given)


def tool(ask: Asker) -> tuple[bool, str]:
    """A call of the offered tool with the city in its arguments."""
    message = ask.message("What is the weather in Lisbon right now? Use the tool.", tools=[LOOKUP], tool_choice="auto")
    calls = message.get("tool_calls") or []
    if not calls:
        return False, f"no tool call: {text_of(message)}"
    function = calls[0].get("function", {})
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return False, f"arguments are no JSON: {function.get('arguments')}"
    right = function.get("name") == "lookup_weather" and "lisbon" in str(arguments.get("city", "")).lower()
    return right, f"{function.get('name')}({json.dumps(arguments)})"


PROBES = {"language": language, "arithmetic": arithmetic, "code": code, "json": structure, "tool call": tool}

if __name__ == "__main__":
    sys.exit(main())
