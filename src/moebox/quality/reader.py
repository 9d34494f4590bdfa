"""Read log-probabilities of texts from a live server."""

import contextlib
import hashlib
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from moebox import http
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint
from moebox.errors import BadInput, ExternalError, Unsupported, refuse_if
from moebox.loose import Json, get_objects, get_path, get_text, is_int_list
from moebox.quality import wire
from moebox.quality.texts import CACHED_KINDS, WINDOW, QualityText
from moebox.quality.wire import UNEQUAL_SHARE, TextReading, find_reading_problem
from moebox.stream.limits import served_limits

TOPS = (64, 20, 5)  # most likely tokens asked for; vLLM refuses more than --max-logprobs (20), OpenAI more than 5
SHORT_TOKENS = 192  # scored of each short text
FIRST_DEPTH = 4  # the first tokens of a text are hardly predictable by anything
PREFIX_STRIDE = 3  # each position costs a request if a server does not score whole prompts
MISSED_SHARE = 0.2  # of positions that may have no reading, because the server fails there
MAX_CHARS_PER_TOKEN = 8  # the beginning of a text that is tokenized: English has four to five
REQUEST_S = 600.0
SAMPLE = "Sample of 17 words, in plain English, for a server: does it return what it expects as the next token?"
UNLIKE_ITSELF = 0.5  # nats in the mean by which two readings of one text may differ before no figure is given

Progress = Callable[[int, int], None]


class LogprobReader:
    """A server that gives log-probabilities, and the dialect in which it does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.session = http.HttpSession(headers=endpoint.headers, tls=http.trusted_certificates(endpoint.base_url))
        self.context = served_limits(endpoint).context or 4096
        self.last_error = ""
        self.asked, self.missed = 0, 0  # positions read by prefixes
        self.cached: int | None = None  # most tokens of a prompt that were in the cache, if the server reports them
        self.dialect, self.top = self._find_dialect()

    def _post(self, path: str, body: Json) -> http.HttpReply:
        reply = self.session.post_json(self.endpoint.server_url + path, body, timeout_s=REQUEST_S)
        if not reply.status:
            raise ExternalError(f"{self.endpoint.base_url}: {reply.text}", hint="is the server up?")
        if reply.status in AUTH_STATUSES:
            raise ExternalError(f"{self.endpoint.base_url}: refused the key ({reply.status})", hint=KEY_HINT)
        return reply

    def _find_dialect(self) -> tuple[wire.Dialect, int]:
        """Find the first dialect that the server answers; a whole prompt at once is much faster than prefixes."""
        ids = self.tokenize(SAMPLE)
        for dialect in wire.DIALECTS:
            for top in TOPS:
                if dialect == "prefixes":
                    reply = self._post(*wire.next_token_request(dialect, self.endpoint.model, ids or SAMPLE, top))
                    found = wire.parse_next_tokens(dialect, reply.json(), len(ids))
                elif dialect == "echo" or ids:
                    prompt = SAMPLE if dialect == "echo" else ids
                    reply = self._post(*wire.prompt_request(dialect, self.endpoint.model, prompt, top))
                    found = wire.parse_prompt_reply(dialect, reply.json(), ids)
                    if dialect == "echo" and not "".join(str(each.token) for each in found).endswith(SAMPLE[-20:]):
                        found = []  # `echo` is not read: these are the tokens of the reply
                    found = found if len(found) >= len(ids) // 2 else []
                else:
                    break
                if found and max(len(position.top) for position in found) >= min(2, top):
                    refuse_if(dialect == "prefixes" and not ids, f"{self.endpoint.base_url} has no /tokenize")
                    wrong, hint = _find_other_count(reply, len(ids)), "it must take token ids as prompts"
                    if wrong:
                        raise Unsupported(f"{self.endpoint.base_url}: {wrong}", hint=hint)
                    return dialect, top
                if reply.status in (404, 405):
                    break
        text = f"{self.endpoint.base_url} gives no log-probabilities of more than one token"
        raise Unsupported(text, hint="they are needed at /v1/completions: `logprobs`, `prompt_logprobs` or `echo`")

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a text, with the token that the server puts first, if any. Empty if it has no /tokenize."""
        for name, flag in (("prompt", "add_special_tokens"), ("content", "add_special")):
            more = {"model": self.endpoint.model} if name == "prompt" else {}
            bodies = [{**more, name: text, flag: special} for special in (False, True)]
            plain, full = (get_path(self._post("/tokenize", body).json(), "tokens") for body in bodies)
            if is_int_list(plain):
                begins = isinstance(full, list) and full[1 : 1 + len(plain)] == plain
                return [full[0], *plain] if isinstance(full, list) and begins else plain
        return []

    def read_next(self, prompt: Sequence[int] | str) -> wire.NextToken | None:
        """The prediction after a prefix, or None if the server fails at it or reads only a part of it.

        llama.cpp answers 500 if the token that it chose is half a character, ik_llama.cpp if any of the most likely
        ones is: fewer are asked for then.
        """
        for top in (size for size in TOPS if size <= self.top):
            reply = self._post(*wire.next_token_request(self.dialect, self.endpoint.model, prompt, top))
            if reply.status != 500:
                break
        document = reply.json()
        found = wire.parse_next_tokens(self.dialect, document, len(prompt))
        for path in ("usage.prompt_tokens_details.cached_tokens", "meta_info.cached_tokens"):
            if isinstance(cached := get_path(document, path), int):
                self.cached = max(cached, self.cached or 0)
        self.last_error = "" if found else "no log-probabilities in the reply" if reply.ok else reply.error
        if not isinstance(prompt, str):
            self.last_error = self.last_error or _find_other_count(reply, len(prompt))
        return found[0] if found and not self.last_error else None

    def read_text(self, text: QualityText, like: TextReading | None = None) -> TextReading:
        """Score one text, with the tokens of `like` if a reference is given. Raise BadInput if the tokens differ."""
        if self.dialect == "echo":
            prompt: str | list[int] = text.text[: 4 * SHORT_TOKENS]
            ids: list[int] = []
        else:
            length = min(max(text.depths, default=SHORT_TOKENS), self.context - 2)
            begin = text.text[: MAX_CHARS_PER_TOKEN * length]
            prompt = ids = _align_tokens(text.name, self.tokenize(begin), like)[:length]
        if text.depths or self.dialect == "prefixes":
            wanted = [depth for end in text.depths if end <= len(ids) for depth in range(end - WINDOW, end)]
            wanted = wanted if text.depths else list(range(FIRST_DEPTH, len(ids), PREFIX_STRIDE))
            found = []
            for depth in wanted:
                self.asked += 1
                if predicted := self.read_next(ids[:depth]):
                    found.append(wire.NextToken(depth=depth, token=ids[depth], top=predicted.top))
                elif text.depths and depth + WINDOW in text.depths:
                    break  # a prompt of this length is refused or cut
                else:
                    self.missed += 1
            if text.kind == CACHED_KINDS[0] and self.cached == 0:
                found = []  # by its own count, the server has no cached prefixes
            kept = wanted[-1] + 1 if wanted else 0
            return TextReading(kind=text.kind, name=text.name, tokens=tuple(ids[:kept]), positions=tuple(found))
        reply = self._post(*wire.prompt_request(self.dialect, self.endpoint.model, prompt, self.top))
        if not reply.ok:
            raise ExternalError(f"{self.endpoint.base_url}: {text.name}: {reply.error}")
        found = wire.parse_prompt_reply(self.dialect, reply.json(), ids)
        first = found[0].depth if found else 0  # nothing is predicted for the first tokens
        tokens: tuple[wire.TokenKey, ...] = tuple(ids) or ("",) * first + tuple(position.token for position in found)
        if like and not ids and tokens[: len(like.tokens)] != like.tokens[: len(tokens)]:
            raise _other_tokenizer(text.name, len(tokens), len(like.tokens))
        found = [position for position in found if FIRST_DEPTH <= position.depth < SHORT_TOKENS]
        return TextReading(kind=text.kind, name=text.name, tokens=tokens, positions=tuple(found))


def _find_other_count(reply: http.HttpReply, sent: int) -> str:
    """What is wrong if a server counts another number of prompt tokens than were sent, or ""; one more is a BOS."""
    document = reply.json()
    count = get_path(document, "usage.prompt_tokens") or get_path(document, "meta_info.prompt_tokens")
    wrong = isinstance(count, int) and sent and count not in (sent, sent + 1)
    return f"it counts {count} prompt tokens where {sent} were sent" if wrong else ""


def _other_tokenizer(name: str, here: int, there: int) -> BadInput:
    text = f"another tokenizer than the reference's: {name!r} is {here} tokens here, {there} there"
    return BadInput(text, hint="only servers of one model and its quantized versions can be compared")


def _align_tokens(name: str, own: list[int], like: TextReading | None) -> list[int]:
    """The tokens to send: the reference's, if they are the same apart from a first special token."""
    if like is None:
        return own
    theirs = [token for token in like.tokens if isinstance(token, int)]
    refuse_if(len(theirs) != len(like.tokens), "the reference has token texts, and this server gives token ids")
    for mine, other in itertools.product((own, own[1:]), (theirs, theirs[1:])):
        size = min(len(mine), len(other))
        if mine[:size] == other[:size] and size > FIRST_DEPTH:
            return theirs
    raise _other_tokenizer(name, len(own), len(theirs))


def read_texts(
    endpoint: Endpoint,
    texts: Sequence[QualityText],
    like: Sequence[TextReading] = (),
    on_progress: Progress | None = None,
) -> tuple[TextReading, ...]:
    """Score all texts. Raise Unsupported if the server's log-probabilities are missing or cannot be trusted."""
    from moebox.quality.judge import divergences

    known = {reading.name: reading for reading in like}
    reader = LogprobReader(endpoint)
    with contextlib.closing(reader.session):
        chosen = [text for text in texts if not (reader.dialect == "echo" and text.depths)]
        chosen = [text for text in chosen if not like or text.name in known]
        readings = []
        for number, text in enumerate(chosen):
            if on_progress:
                on_progress(number, len(chosen))
            readings.append(reader.read_text(text, known.get(text.name)))
        problem = find_reading_problem(readings)
        if reader.missed > MISSED_SHARE * reader.asked:
            problem = f"no log-probabilities at {reader.missed} of {reader.asked} positions: {reader.last_error}"
        problem = problem or _find_lie(reader, readings[0])
        if not problem:  # a server that invents figures does not repeat them
            again = reader.read_text(chosen[0], readings[0])
            apart = statistics.fmean(row.low for row in divergences([readings[0]], [again]))
            problem = f"the same text gave figures {apart:.2f} nats apart" if apart > UNLIKE_ITSELF else ""
    if problem:
        raise Unsupported(f"{endpoint.base_url}: {problem}", hint="no figure can be given for this server")
    return tuple(reading for reading in readings if reading.positions)


def _find_lie(reader: LogprobReader, reading: TextReading) -> str:
    """Compare log-probabilities with what the server writes at temperature 0; "" if they agree."""
    chosen = reading.positions[:: max(1, len(reading.positions) // 16)]
    wrong = 0
    for position in chosen:
        before = reading.tokens[: position.depth]
        ids = [token for token in before if isinstance(token, int)]
        if not (written := reader.read_next(ids or "".join(map(str, before)))):
            continue
        likely = next(iter(position.top.items()))
        # A near tie may fall either way
        wrong += written.token != likely[0] and likely[1] - position.top.get(written.token, -99.0) > 1.0
    return "it does not write its most likely token at temperature 0" if wrong > UNEQUAL_SHARE * len(chosen) else ""


def describe_server(endpoint: Endpoint) -> dict[str, str]:
    """Engine, version and weights, as far as the server reports them, and the box if it is this one."""
    from moebox.detect import load_box

    pages = {}
    for path in ("/version", "/props", "/server_info", "/get_server_info", "/v1/models"):
        pages[path] = http.get(endpoint.server_url + path, headers=endpoint.headers, timeout_s=5.0).json_if_ok()
    row = next((each for each in get_objects(pages["/v1/models"], "data") if each.get("id") == endpoint.model), {})
    server = pages["/server_info"] or pages["/get_server_info"]
    version = get_text(pages["/version"], "version") or get_text(server, "version")
    path = get_text(pages["/props"], "model_path") or get_text(server, "model_path") or get_text(row, "root")
    local = urlsplit(endpoint.base_url).hostname in ("127.0.0.1", "localhost")
    box = load_box() if local else None
    return {
        "engine": endpoint.engine or get_text(row, "owned_by"),
        "version": version or get_text(pages["/props"], "build_info"),
        "weights": _weights_hash(path) if local else "",
        "weights_name": Path(path).name[:120],
        "box": ", ".join(filter(None, (box.name, box.cpu.model if box.cpu else ""))) if box else "",
    }


def _weights_hash(name: str) -> str:
    """Hash of a GGUF's header and size, or of a folder's configuration and index; "" if it is not on this machine."""
    path = Path(name)
    parts = [path] if path.is_file() else [path / "config.json", path / "model.safetensors.index.json"]
    total = hashlib.sha256()
    for part in parts:
        if part.is_file():
            with part.open("rb") as file:
                total.update(file.read(1 << 20) + str(part.stat().st_size).encode())
    return total.hexdigest() if any(part.is_file() for part in parts) else ""
