"""Save and restore of llama.cpp slots: are conversations their own again, and is a broken store noticed?

    python -m benchmarks.kv_store --conversations 100 --broken 20

Each conversation has codes of its own in one text; after all were saved, each slot is restored and asked for a code
that was not asked before. Then keys and values are exchanged in the files, as a store does that swaps two blocks,
returns an old one or another conversation's: the answers show it, and moebox's digests leave the files out.
"""

import argparse
import random
import tempfile
from pathlib import Path

from tests.embedded import phantom_recipe

from moebox import http
from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import KvTiers
from moebox.phantom.question import Question
from moebox.phantom.text_questions import haystack_questions
from moebox.serve import kv_store, session
from moebox.store import Run
from moebox.verify.checks.cache import with_new_codes


def ask_slot(live: Endpoint, action: str, name: str) -> None:
    url = f"{live.server_url}/slots/0?action={action}"
    reply = http.post_json(url, {"filename": name}, headers=live.headers, timeout_s=120)
    if not reply.ok:
        raise SystemExit(f"{action} {name}: {reply.error}")


def ask_code(live: Endpoint, question: Question) -> tuple[bool, int]:
    """Whether the code is right, and how many prompt tokens came from the cache."""
    request = {"model": "phantom", "messages": list(question.messages), "temperature": 0, "max_tokens": 16}
    request["chat_template_kwargs"] = {"thinking": False}
    body = http.post_json(f"{live.base_url}/chat/completions", request, headers=live.headers, timeout_s=300).json()
    return body["choices"][0]["message"]["content"] == question.expect, body["timings"]["cache_n"]


def break_pair(folder: Path, one: str, other: str, how: str) -> None:
    """Give a file keys and values of another one at the same places; its tokens and the structure stay."""
    first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
    size = min(len(first), len(second))
    quarter, end = size // 4, size - 64
    middle = (quarter + end) // 2
    low, high = {"swap": (quarter, middle), "old": (quarter, end), "another": (middle, end)}[how]
    (folder / one).write_bytes(first[:low] + second[low:high] + first[high:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--broken", type=int, default=20)
    given = parser.parse_args()
    rng = random.Random(4)
    base = haystack_questions(rng, chars=400, depths=(0.2, 0.5, 0.8))
    talks = [with_new_codes(rng, base) for _ in range(given.conversations)]
    with tempfile.TemporaryDirectory() as place:
        recipe = phantom_recipe(context=512, kv_tiers=KvTiers(disk_gib=1, folder=f"{place}/kv"))
        with session.engine_session(deploy(recipe), Run.create("kv-store", runs=Path(place))) as live:
            folder = Path(live.instance.kv_store)
            for number, questions in enumerate(talks):
                ask_code(live.endpoint, questions[0])
                ask_slot(live.endpoint, "save", f"{number}.bin")
            right = cached = 0
            for number, questions in enumerate(talks):
                ask_slot(live.endpoint, "restore", f"{number}.bin")
                good, tokens = ask_code(live.endpoint, questions[1])
                right, cached = right + good, cached + (tokens > 80)
            print(f"restored: {right} of {len(talks)} right, {cached} of them from the cache", flush=True)
            red = noticed = 0
            for number in range(given.broken):
                name, other = f"{number}.bin", f"{(number + 1) % len(talks)}.bin"
                digest = kv_store._file_digest(folder / name)
                break_pair(folder, name, other, ("swap", "old", "another")[number % 3])
                noticed += kv_store._file_digest(folder / name) != digest
                answers = []
                for question in talks[number]:
                    ask_slot(live.endpoint, "restore", name)
                    answers.append(ask_code(live.endpoint, question)[0])
                red += not all(answers)
            print(
                f"broken: {red} of {given.broken} answered wrong, {noticed} of {given.broken} left out by their digest"
            )


if __name__ == "__main__":
    main()
