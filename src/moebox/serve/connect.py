"""Client configuration for a live endpoint, and a call as a client makes it: streamed, with tools, in its protocol.

Keys are never written: files and printed commands refer to the environment variable that holds the key.
"""

import itertools
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from moebox import codec, files
from moebox.core import catalogue
from moebox.core.endpoint import AUTH_STATUSES, KEY_HINT, Endpoint
from moebox.errors import AnswerIsNo, BadInput, ExternalError
from moebox.loose import Json, get_objects, get_text
from moebox.serve import jsonc
from moebox.stream.sse import EventParser, is_done_mark
from moebox.units import format_seconds

ClientName = Literal["claude-code", "zed", "opencode", "openai", "curl"]
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)
CLIENTS_WITH_CONTEXT: tuple[ClientName, ...] = ("claude-code", "zed", "opencode")
OTHER_API: dict[ClientName, str] = {"claude-code": "anthropic", "openai": "responses"}  # beside chat completions
CLIENTS_WITH_VISION: tuple[ClientName, ...] = ("zed", "opencode")
NO_KEY = "dummy"  # clients require a key; a server without one accepts any
DEFAULT_CONTEXT = 65536  # if the server does not report its own; plans start with this
CLAUDE_MIN_WINDOW = 100_000  # the smallest compaction window that Claude Code accepts
CLAUDE_MIN_CONTEXT = 32_768  # its own prompt and tools, and room to work
COMPACT_PERCENT = 80  # per cent of the context
MAX_OUTPUT = 32768  # most tokens of one reply; never more than half the context
QUESTION = "Read the file /srv/notes/shopping.txt with the tool."
PATH = "/srv/notes/shopping.txt"
FILE_PATH = {"type": "string", "description": "absolute path"}
PARAMETERS = {"type": "object", "properties": {"file_path": FILE_PATH}, "required": ["file_path"]}
MAX_TOKENS = 4096  # enough to think before the call
MAX_EVENTS = 4 * MAX_TOKENS  # some servers send several events per token
MAX_REPLY_S = 1800.0  # for a whole reply, at two tokens a second


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    client: ClientName
    text: str  # exports, JSON or a command to paste
    path: Path | None = None  # the file `--write` merges into
    changes: Json = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    endpoint: Endpoint
    key_env: str = ""
    context: int = DEFAULT_CONTEXT
    vision: bool = False

    @property
    def shell_key(self) -> str:
        """The key as a word of a shell command."""
        return f'"${self.key_env}"' if self.key_env else NO_KEY


def client_settings(client: ClientName, live: LiveModel) -> ClientSettings:
    return {
        "claude-code": _claude_settings,
        "zed": _zed_settings,
        "opencode": _opencode_settings,
        "openai": _openai_settings,
        "curl": _curl_settings,
    }[client](live)


def _claude_settings(live: LiveModel) -> ClientSettings:
    """The variables of Lambda's guide to Kimi K2.6; in the file, a command prints the key."""
    model = live.endpoint.model
    names = ["ANTHROPIC_MODEL"]
    names += [f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("SONNET", "OPUS", "HAIKU")]
    names += ["ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_FAST_MODEL"]
    env = {"ANTHROPIC_BASE_URL": live.endpoint.server_url, "ANTHROPIC_API_KEY": NO_KEY} | dict.fromkeys(names, model)
    # Claude Code assumes 200,000 tokens for an unknown model. As 2.1.197 reads them: the compaction window is never
    # below CLAUDE_MIN_WINDOW, so for a shorter context the percentage at which compaction begins is lowered instead;
    # CLAUDE_CODE_MAX_CONTEXT_TOKENS counts if compaction is off.
    window = max(live.context, CLAUDE_MIN_WINDOW)
    env |= {
        "DISABLE_TELEMETRY": "1",
        "ENABLE_PROMPT_CACHING_1H": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_output_tokens(live)),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(live.context),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(window),
    }
    if live.context < CLAUDE_MIN_WINDOW:
        env["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] = str(max(1, COMPACT_PERCENT * live.context // window))
    exports = {name: f"export {name}={shlex.quote(value)}" for name, value in env.items()}
    exports["ANTHROPIC_API_KEY"] = f"export ANTHROPIC_API_KEY={live.shell_key}"
    changes: dict[str, object] = {"env": env}
    if live.key_env:
        del env["ANTHROPIC_API_KEY"]
        changes["apiKeyHelper"] = f"printenv {live.key_env}"
    short = f"Claude Code's own prompt is about 20,000 tokens; a context of {live.context:,} is too short for it"
    return ClientSettings(
        client="claude-code",
        text="\n".join([*exports.values(), "", "claude"]),
        path=Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "settings.json",
        changes=changes,
        notes=(short,) if live.context < CLAUDE_MIN_CONTEXT else (),
    )


def max_output_tokens(live: LiveModel) -> int:
    """The most tokens a client should ask for in one reply."""
    return min(MAX_OUTPUT, live.context // 2)


def _zed_settings(live: LiveModel) -> ClientSettings:
    model = {
        "name": live.endpoint.model,
        "display_name": f"{live.endpoint.model} (moebox)",
        "max_tokens": live.context,
        "max_output_tokens": max_output_tokens(live),
        "capabilities": {"tools": True, "images": live.vision, "parallel_tool_calls": False, "prompt_cache_key": False},
    }
    provider = {"api_url": live.endpoint.base_url, "available_models": [model]}
    changes = {"language_models": {"openai_compatible": {"moebox": provider}}}
    # Zed reads a provider's key from NAME_API_KEY, or asks for it once and stores it in the system's keychain.
    return ClientSettings(
        client="zed",
        text=codec.to_json(changes, indent=2),
        path=files.xdg_home("config") / "zed" / "settings.json",
        changes=changes,
        notes=(f"run `export MOEBOX_API_KEY={live.shell_key}` before you start Zed: it reads the key from there",),
    )


def _opencode_settings(live: LiveModel) -> ClientSettings:
    model = live.endpoint.model
    options = {"baseURL": live.endpoint.base_url}
    if live.key_env:
        options["apiKey"] = f"{{env:{live.key_env}}}"
    limit = {"context": live.context, "output": max_output_tokens(live)}
    entry: dict[str, object] = {"name": model, "limit": limit, "tool_call": True}
    if live.vision:  # a custom model reads only text by default (anomalyco/opencode#25229)
        entry |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "moebox", "options": options, "models": {model: entry}}
    changes = {"$schema": "https://opencode.ai/config.json", "provider": {"moebox": provider}}
    folder = files.xdg_home("config") / "opencode"
    path = folder / "opencode.jsonc" if (folder / "opencode.jsonc").exists() else folder / "opencode.json"
    return ClientSettings(
        client="opencode",
        text=codec.to_json(changes, indent=2),
        path=path,
        changes=changes,
        notes=(f"`opencode -m moebox/{model}` uses it",),
    )


def _openai_settings(live: LiveModel) -> ClientSettings:
    text = f"""export OPENAI_BASE_URL={shlex.quote(live.endpoint.base_url)}
export OPENAI_API_KEY={live.shell_key}

python3 - <<'CODE'
from openai import OpenAI
answer = OpenAI().chat.completions.create(
    model={live.endpoint.model!r}, messages=[{{'role': 'user', 'content': 'Say hello.'}}]
)
print(answer.choices[0].message.content)
CODE"""
    return ClientSettings(client="openai", text=text)


def _curl_settings(live: LiveModel) -> ClientSettings:
    body = {"model": live.endpoint.model, "messages": [{"role": "user", "content": "Say hello."}]}
    lines = [f"curl -sS {shlex.quote(live.endpoint.base_url + '/chat/completions')}"]
    lines.append("-H 'Content-Type: application/json'")
    if live.key_env:
        # process substitution, so that the key is in no process list
        lines.append(f"-H @<(printf 'Authorization: Bearer %s' \"${live.key_env}\")")
    lines.append(f"-d {shlex.quote(codec.to_json(body, indent=None))}")
    return ClientSettings(client="curl", text=" \\\n  ".join(lines))


def write_settings(settings: ClientSettings) -> tuple[Path, Path | None]:
    """Merge settings into the client's own file. Return that file, and its backup or None if nothing was changed."""
    if settings.path is None:
        hint = "leave --write out and paste what is printed"
        raise BadInput(f"{settings.client} has no settings file to write", hint=hint)
    path = settings.path.resolve()
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path}: cannot be read: {problem}") from None
    after = jsonc.merge_changes(before or "", settings.changes, str(path))
    if after == before:
        return path, None
    backup = None
    with files.report_write_errors(path, error_type=BadInput):
        if before is not None:
            stem = f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"
            names = itertools.chain([f"{stem}.bak"], (f"{stem}-{number}.bak" for number in itertools.count(1)))
            backup = next(place for place in map(path.with_name, names) if not place.exists())
            shutil.copy(path, backup)
        files.write_atomic(path, after, mode=path.stat().st_mode & 0o777 if backup else 0o600)
    return path, backup


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall:
    protocol: str
    url: str
    evidence: str
    events: int


def call_as_client(client: ClientName, endpoint: Endpoint, *, timeout_s: float = 300.0) -> EndpointCall:
    """Call as `client` does: streamed, with a tool that must be called by those that use tools.

    Raise AnswerIsNo if the client cannot use the reply.
    """
    texts: Any = catalogue.load_table("questions")["clients"]  # the phantom was trained on these texts
    body: dict[str, object] = {"model": endpoint.model, "max_tokens": MAX_TOKENS, "stream": True}
    headers, tool = dict(endpoint.headers), ""
    if client == "claude-code":  # Anthropic's /v1/messages
        protocol, url, tool = "anthropic messages", f"{endpoint.server_url}/v1/messages", "Read"
        headers = {"x-api-key": endpoint.key or "dummy", "anthropic-version": "2023-06-01"} | headers
        body |= {
            "system": [{"type": "text", "text": texts["coding_system"]}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
            "tools": [{"name": tool, "description": texts["read_description"], "input_schema": PARAMETERS}],
        }
    else:  # OpenAI's chat completions
        protocol, url, question = "openai chat", f"{endpoint.base_url}/chat/completions", texts["hello"]
        if client in CLIENTS_WITH_CONTEXT:
            protocol, question, tool = "openai chat with tools", QUESTION, "read_file"
            function = {"name": tool, "description": texts["read_description"], "parameters": PARAMETERS}
            body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
        body |= {"stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": question}]}
    name, arguments, text, reason, events = "", "", "", "", 0
    for event in _stream_events(url, headers, body, timeout_s):
        events += 1
        if get_text(event, "content_block.type") == "tool_use":
            name = get_text(event, "content_block.name")
        arguments += get_text(event, "delta.partial_json")
        text += get_text(event, "delta.text")
        reason = get_text(event, "delta.stop_reason") or reason
        for choice in get_objects(event, "choices"):
            text += get_text(choice, "delta.content")
            for part in get_objects(choice, "delta.tool_calls"):
                name = name or get_text(part, "function.name")
                arguments += get_text(part, "function.arguments")
    if not tool:
        evidence = text.strip()[:120]
        if not evidence:
            raise AnswerIsNo(f"{url}: the reply has no text", hint="does the reasoning parser swallow the answer?")
    else:
        suffix = f" (stop_reason {reason or 'missing'})" if client == "claude-code" else ""
        _require_call(url, name, arguments, wanted=tool, otherwise=f"{text[:120]!r}{suffix}")
        evidence = f"{name}({arguments})" + (f", {reason}" if client == "claude-code" else "")
    return EndpointCall(protocol=protocol, url=url, evidence=evidence, events=events)


def _require_call(url: str, name: str, arguments: str, *, wanted: str, otherwise: str) -> None:
    """Raise AnswerIsNo unless the tool `wanted` was called with PATH; without a call the reply was `otherwise`."""
    if not name:
        raise AnswerIsNo(f"{url}: answered without calling the tool: {otherwise}", hint="is a tool parser set?")
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise AnswerIsNo(f"{url}: the tool's arguments are not valid JSON: {arguments[:120]!r}") from None
    if name != wanted or get_text(given, "file_path") != PATH:
        raise AnswerIsNo(f"{url}: called {name}({arguments[:120]}) instead of {wanted} with {PATH}")


def _stream_events(url: str, headers: Mapping[str, str], body: Json, timeout_s: float) -> Iterator[Json]:
    """Yield the JSON of every event up to the one that ends the reply: some servers keep the connection open.

    Raise ExternalError if the server cannot be reached, AnswerIsNo if it refuses or sends something else.
    """
    import httpx2

    try:
        with httpx2.stream("POST", url, headers=dict(headers), json=body, timeout=timeout_s, trust_env=False) as answer:
            if answer.status_code != 200:
                answer.read()
                status, reason = answer.status_code, " ".join(answer.text.split())[:200]
                if status in (404, 405, 501):
                    hint = "vLLM, SGLang and llama.cpp of 2026 have it; older ones need a translating proxy"
                    raise AnswerIsNo(f"{url}: this server does not speak that protocol ({status})", hint=hint)
                if status in AUTH_STATUSES:
                    raise AnswerIsNo(f"{url}: refused the key ({status})", hint=KEY_HINT)
                raise AnswerIsNo(f"{url}: answered {status}: {reason}")
            for number, data in enumerate(_event_data(url, answer.iter_bytes())):
                if is_done_mark(data):
                    return
                if number == MAX_EVENTS:
                    limit = f"though asked for {MAX_TOKENS:,} tokens at most"
                    raise AnswerIsNo(f"{url}: more than {MAX_EVENTS:,} events, {limit}")
                text = data.decode(errors="replace")
                try:
                    event = json.loads(text)
                except (ValueError, RecursionError):
                    raise AnswerIsNo(f"{url}: streamed something that is not JSON: {text[:120]!r}") from None
                if not isinstance(event, dict):
                    raise AnswerIsNo(f"{url}: streamed {text[:60]!r} instead of an object")
                if event.get("error") or event.get("type") == "error":
                    raise AnswerIsNo(f"{url}: failed while answering: {text.strip()[:200]}")
                yield event
                if event.get("type") == "message_stop":
                    return
    except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
        raise ExternalError(f"{url}: {problem or type(problem).__name__}", hint="is the server up?") from None


def _event_data(url: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    until = time.monotonic() + MAX_REPLY_S
    parser = EventParser()
    for block in blocks:
        yield from (data for _, data in parser.feed(block) if data.strip())
        if parser.problem:
            raise AnswerIsNo(f"{url}: streamed {parser.problem}")
        if time.monotonic() > until:
            raise AnswerIsNo(f"{url}: the reply had no end within {format_seconds(MAX_REPLY_S)}")
    yield from (data for _, data in parser.close() if data.strip())
