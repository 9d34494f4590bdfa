"""A small server whose next-token probabilities follow from the tokens before, in the wire formats of four engines."""

import dataclasses
import functools
import json
import math
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 40


def few_texts() -> tuple[Any, ...]:
    """Every third text, and as much of the long one as the servers' context holds: each kind is there."""
    from moebox.quality.texts import standard_texts

    *texts, _, long = standard_texts()
    return (*texts[::3], dataclasses.replace(long, text=long.text[:2000]))


def with_cached_text() -> tuple[Any, ...]:
    """The few texts, and the one that is scored after cached prefixes."""
    from moebox.quality.texts import standard_texts

    return (*few_texts(), standard_texts()[-2])


class ToyServer(ThreadingHTTPServer):
    """`noise` moves every log-probability; `fault` names how the server misbehaves."""

    daemon_threads = True

    def __init__(self, dialect: str, *, noise: float = 0.0, seed: int = 1, fault: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dialect, self.noise, self.seed, self.fault = dialect, noise, seed, fault
        self.seen: list[str] = []  # prompts in the cache
        self.busy: list[str] = []  # prompts that are being answered
        self.changes = threading.Condition()

    def is_faulty(self, body: dict[str, Any]) -> bool:
        """Whether the server answers this prompt wrongly because of its route. Waits a moment for neighbours."""
        prompt, cached = str(body["prompt"]), bool(body.get("cache_prompt"))
        waits = {"crowd": 0.25, "padded": 0.25, "slots": 0.5}.get(self.fault, 0)
        company = 2 if self.fault == "slots" else 1
        with self.changes:
            self.busy.append(prompt)
            place = self.busy.count(prompt)
            self.changes.notify_all()
            self.changes.wait_for(lambda: len(self.busy) > company, timeout=waits)
            begun = cached and any(prompt != old and prompt.startswith(old) for old in self.seen)
            again = cached and prompt in self.seen
            self.seen += [prompt] if cached else []
            return {
                "cached": again,
                "cached, long": again and len(prompt) > 1000,
                "pieces": begun,
                "crowd": len(self.busy) > 1,
                "slots": place > 2,
                "padded": any(len(other) > 2 * len(prompt) for other in self.busy),
            }.get(self.fault, False)

    def leave(self, body: dict[str, Any]) -> None:
        with self.changes:
            self.busy.remove(str(body["prompt"]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def tokenize(self, text: str, special: bool) -> list[int]:
        shift = 7 if self.fault == "other tokenizer" else 0
        ids = [2 + (ord(letter) + shift) % (VOCABULARY - 2) for letter in text]
        return [1, *ids] if special and self.fault != "no BOS" else ids

    def predict(self, before: list[int], top: int) -> dict[int, float]:
        """The most likely tokens after a prefix."""
        if self.fault == "constant":
            before = []
        draw = _draw_values.__wrapped__ if self.fault == "random" else _draw_values
        values = draw(str(before[-2:]), self.seed, self.noise, self.fault)
        return dict(values[: 1 if self.fault == "one" else top])


@functools.cache
def _draw_values(before: str, seed: int, noise: float, fault: str) -> list[tuple[int, float]]:
    """Every token's log-probability, the most likely first."""
    rng, other = random.Random(before), random.Random(f"{seed} {before}")
    logits = [2.5 * rng.gauss() + noise * other.gauss() for _ in range(VOCABULARY)]
    if fault == "random":
        logits = [5 * random.gauss() for _ in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, logits)))
    values = [logit - total for logit in logits]
    if fault == "rounded":
        values = [round(value, 2) for value in values]
    if fault == "clamped":
        values = [max(-4.0, value) for value in values]
    return sorted(enumerate(values), key=lambda pair: -pair[1])


class _Handler(BaseHTTPRequestHandler):
    server: ToyServer
    protocol_version = "HTTP/1.1"  # connections are kept, as every engine keeps them
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        models = {"data": [{"id": "toy", "max_model_len": 600, "owned_by": self.server.dialect}]}
        self._reply(models if self.path == "/v1/models" else None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if self.path == "/tokenize" and server.dialect != "echo":
            special = body.get("add_special_tokens", body.get("add_special", True))
            text = body.get("prompt") if server.dialect != "prefixes" else body.get("content")
            self._reply({"tokens": server.tokenize(text, special)} if text else None)
        elif self.path == "/generate" and server.dialect == "generate":
            self._reply(self._generate(body))
        elif self.path == "/v1/completions" and server.fault != "none":
            too_many = server.dialect == "prompt_logprobs" and body["logprobs"] > 20
            half = server.fault == "half characters" and body["logprobs"] > 20 and len(body["prompt"]) % 2 > 0
            wrong = self.server.is_faulty(body)
            self._reply(None if too_many or half else self._complete(body, wrong), 400 if too_many else 500)
            self.server.leave(body)
        else:
            self._reply(None)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, top = body["input_ids"], body["top_logprobs_num"]
        scored = ids if "logprob_start_len" in body else []
        rows = [self.server.predict(ids[:depth], VOCABULARY) for depth in range(len(scored))]
        inputs = [[row[ids[depth]], ids[depth], None] for depth, row in enumerate(rows)]
        rows.append(self.server.predict(ids, VOCABULARY))
        tops = [[[value, token, None] for token, value in list(row.items())[:top]] for row in rows]
        meta = {"input_token_logprobs": inputs, "input_top_logprobs": [None, *tops[1:-1]] if scored else []}
        meta |= {"output_token_logprobs": [tops[-1][0]], "output_top_logprobs": [tops[-1]]}
        return {"text": "x", "meta_info": meta}

    def _complete(self, body: dict[str, Any], wrong: bool) -> dict[str, Any]:
        server, top = self.server, body["logprobs"]
        prompt = body["prompt"]
        ids = server.tokenize(prompt, True) if isinstance(prompt, str) else prompt
        choice: dict[str, Any] = {"text": "x"}
        count = len(ids)
        if server.fault == "ids as text" and not isinstance(prompt, str):
            count = len(ids := server.tokenize(str(prompt), True))
        if server.fault == "cut" and len(ids) > 100:
            count = len(ids := ids[-100:])
        ids = ids[:-1] if wrong else ids  # a lost token is a usual fault of caches
        coarse = server.fault == "coarse cache" and len(ids) > 64 and not body.get("prompt_logprobs")
        after = dict(_draw_values(str(ids[-2:]), 5, 0.3, "")[:top]) if coarse else server.predict(ids, top)
        chosen = next(iter(after))
        if server.fault == "lies":
            chosen = (chosen + 1) % VOCABULARY
        if server.fault == "fails often" and len(ids) % 5 < 2:
            return {"choices": []}
        if server.dialect == "prefixes":
            written = choice["logprobs"] = {"content": []}
            for _ in range(body["max_tokens"]):
                rows = [{"id": token, "logprob": value} for token, value in after.items()]
                entry = {"id": chosen, "logprob": after.get(chosen, -9.0), "top_logprobs": rows}
                written["content"].append(entry)
                ids = [*ids, chosen]
                after = server.predict(ids[:-1] if server.fault == "decoded" else ids, top)
                chosen = next(iter(after))
        elif server.dialect == "prompt_logprobs":
            marks = {f"token_id:{token}": value for token, value in after.items()}
            choice["logprobs"] = {"tokens": [f"token_id:{chosen}"], "token_logprobs": [0], "top_logprobs": [marks]}
            scored = ids if body.get("prompt_logprobs") else []
            every = [server.predict(ids[:depth], VOCABULARY) for depth in range(len(scored))]
            kept = [{**dict(list(row.items())[:top]), ids[depth]: row[ids[depth]]} for depth, row in enumerate(every)]
            choice["prompt_logprobs"] = [None, *({str(t): {"logprob": v} for t, v in row.items()} for row in kept[1:])]
        elif server.dialect == "echo" and body.get("echo"):
            every = [server.predict(ids[:depth], VOCABULARY) for depth in range(len(ids))]
            texts = ["", *prompt]
            own: list[object] = [None]
            tops: list[object] = [None]
            for depth, row in list(enumerate(every))[1:]:
                named = {
                    texts[depth] if token == ids[depth] else self._letter(token): value for token, value in row.items()
                }
                tops.append(dict(list(named.items())[:top]))
                own.append(row[ids[depth]])
            choice["logprobs"] = {"tokens": texts, "token_logprobs": own, "top_logprobs": tops}
        elif server.dialect == "echo":
            named = {self._letter(token): value for token, value in after.items()}
            choice["logprobs"] = {"tokens": [self._letter(chosen)], "token_logprobs": [0], "top_logprobs": [named]}
        usage: dict[str, Any] = {"prompt_tokens": count}
        if server.fault == "no prefix cache":
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
        return {"choices": [choice], "usage": usage}

    @staticmethod
    def _letter(token: int) -> str:
        return f"<{token}>"

    def _reply(self, document: object, failure: int = 404) -> None:
        raw = json.dumps(document if document is not None else {"error": {"message": "not supported"}}).encode()
        self.send_response(200 if document is not None else failure)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass
