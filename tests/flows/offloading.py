"""A stand-in for vLLM with a prefix cache on its GPU and, if its flags say so, a tier in RAM.

    python offloading.py MODE MODEL --port N --num-gpu-blocks-override N [--kv-offloading-size GIB]

MODE: good; mixes (what comes back from RAM is another conversation's); blind (answers ignore the prompt).
"""

import hashlib
import json
import sys
import time
from collections import OrderedDict
from typing import ClassVar

from stepping import Steps, say, serve_forever

BLOCK = 16
TOKEN_S = 1e-5


class Offloading(Steps):
    room, tiered = 0, False
    on_gpu: ClassVar[OrderedDict[tuple[int, ...], int]] = OrderedDict()  # first block of a conversation -> its tokens
    in_ram: ClassVar[OrderedDict[tuple[int, ...], list[int]]] = OrderedDict()

    def answer(self, asked: dict) -> None:  # type: ignore[type-arg]
        prompt = list(asked["prompt"])
        begins, whole = tuple(prompt[:BLOCK]), (len(prompt) - 1) // BLOCK * BLOCK
        cached, source = min(self.on_gpu.pop(begins, 0), whole), prompt
        if not cached and self.tiered and begins in self.in_ram:
            cached = min(len(self.in_ram[begins]), whole)
            if self.mode == "mixes":
                others = [tokens for key, tokens in self.in_ram.items() if key != begins]
                source = others[-1] + prompt[cached:]
        self.on_gpu[begins] = len(prompt) // BLOCK * BLOCK
        self.in_ram[begins] = prompt[: len(prompt) // BLOCK * BLOCK]
        while sum(self.on_gpu.values()) > self.room:
            self.on_gpu.popitem(last=False)
        time.sleep((len(prompt) - cached) * TOKEN_S)
        seed = "" if self.mode == "blind" else ",".join(map(str, source))
        words = [hashlib.sha256(f"{seed} {place}".encode()).hexdigest()[:6] for place in range(asked["max_tokens"])]
        self.begin_events()
        for word in words:
            time.sleep(0.0005)
            self.event({"choices": [{"text": word, "finish_reason": None}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(words)}
        self.event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}})
        self.wfile.write(b"data: [DONE]\n\n")


def main() -> None:
    words = sys.argv[1:]
    Offloading.mode = words[0]
    Offloading.room = BLOCK * int(words[words.index("--num-gpu-blocks-override") + 1])
    Offloading.tiered = "--kv-offloading-size" in words
    say(
        f"(EngineCore pid=1) INFO 11-15 02:04:09 [kv_cache_utils.py:2328] GPU KV cache size: {Offloading.room:,} tokens"
    )
    say(json.dumps(words))
    serve_forever(Offloading, int(words[words.index("--port") + 1]))


if __name__ == "__main__":
    main()
