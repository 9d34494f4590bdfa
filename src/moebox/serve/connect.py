"""Client configuration for a live endpoint, and a call as a client makes it: streamed, with tools, in its protocol.

Keys are never written: files and printed commands refer to the environment variable that holds the key.
"""

import json
import os
import shlex
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
PARAMETERS = {
    "type": "object",
    "properties": {"file_path": {"type": "string", "description": "absolute path"}},
    "required": ["file_path"],
}
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
    changes: dict[str, object] = {"env": env}
    if live.key_env:
        exports["ANTHROPIC_API_KEY"] = f'export ANTHROPIC_API_KEY="${live.key_env}"'
        del env["ANTHROPIC_API_KEY"]
        changes["apiKeyHelper"] = f"printenv {live.key_env}"
    folder = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    short = f"Claude Code's own prompt is about 20,000 tokens; a context of {live.context:,} is too short for it"
    return ClientSettings(
        client="claude-code",
        text="\n".join([*exports.values(), "", "claude"]),
        path=folder / "settings.json",
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
    home = files.xdg_home("config")
    # Zed reads a provider's key from NAME_API_KEY, or asks for it once and stores it in the system's keychain.
    key = f'export MOEBOX_API_KEY="${live.key_env}"' if live.key_env else f"export MOEBOX_API_KEY={NO_KEY}"
    return ClientSettings(
        client="zed",
        text=codec.to_json(changes, indent=2),
        path=home / "zed" / "settings.json",
        changes=changes,
        notes=(f"run `{key}` before you start Zed: it reads the key from there",),
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
    key = f'export OPENAI_API_KEY="${live.key_env}"' if live.key_env else f"export OPENAI_API_KEY={NO_KEY}"
    lines = [f"export OPENAI_BASE_URL={shlex.quote(live.endpoint.base_url)}", key, ""]
    lines += [
        "python3 - <<'CODE'",
        "from openai import OpenAI",
        "answer = OpenAI().chat.completions.create(",
        f"    model={live.endpoint.model!r}, messages=[{{'role': 'user', 'content': 'Say hello.'}}]",
        ")",
        "print(answer.choices[0].message.content)",
        "CODE",
    ]
    return ClientSettings(client="openai", text="\n".join(lines))


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
    with files.report_write_errors(path, error_type=BadInput):
        if before is None:
            files.write_atomic(path, after, mode=0o600)
            return path, None
        backup = _write_backup(path, before)
        files.write_atomic(path, after, mode=path.stat().st_mode & 0o777)
    return path, backup


def _write_backup(path: Path, before: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        backup = path.with_name(f"{path.name}.{stamp}{f'-{number}' if number else ''}.bak")
        if not backup.exists():
            backup.write_text(before, encoding="utf-8")
            backup.chmod(path.stat().st_mode & 0o777)
            return backup
    raise BadInput(f"{path}: too many backups beside it")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall:
    protocol: str
    url: str
    evidence: str
    events: int


def call_as_client(client: ClientName, endpoint: Endpoint, *, timeout_s: float = 300.0) -> EndpointCall:
    """Call as `client` does. Raise AnswerIsNo if the client cannot use the reply."""
    if client == "claude-code":
        return _call_messages(endpoint, timeout_s)
    return _call_chat(endpoint, tools=client in ("zed", "opencode"), timeout_s=timeout_s)


def question_texts() -> Any:
    return catalogue.load_table("questions")["clients"]  # the phantom was trained on these texts


def _call_messages(endpoint: Endpoint, timeout_s: float) -> EndpointCall:
    """Anthropic's /v1/messages, streamed, with a tool that must be called."""
    url, texts = f"{endpoint.server_url}/v1/messages", question_texts()
    body = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "system": [{"type": "text", "text": texts["coding_system"]}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "tools": [{"name": "Read", "description": texts["read_description"], "input_schema": PARAMETERS}],
    }
    headers = {"x-api-key": endpoint.key or "dummy", "anthropic-version": "2023-06-01"}
    call = StreamedCall()
    reason = ""
    for event in _stream_events(url, headers | endpoint.headers, body, timeout_s):
        call.events += 1
        if get_text(event, "content_block.type") == "tool_use":
            call.name = get_text(event, "content_block.name")
        call.arguments += get_text(event, "delta.partial_json")
        call.text += get_text(event, "delta.text")
        reason = get_text(event, "delta.stop_reason") or reason
    call.require_call(url, "Read", f" (stop_reason {reason or 'missing'})")
    evidence = f"{call.name}({call.arguments}), {reason}"
    return EndpointCall(protocol="anthropic messages", url=url, evidence=evidence, events=call.events)


def _call_chat(endpoint: Endpoint, *, tools: bool, timeout_s: float) -> EndpointCall:
    """OpenAI's chat completions, streamed; with a tool for the clients that use tools."""
    url, texts = f"{endpoint.base_url}/chat/completions", question_texts()
    body: dict[str, object] = {
        "model": endpoint.model,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": QUESTION if tools else texts["hello"]}],
    }
    if tools:
        function = {"name": "read_file", "description": texts["read_description"], "parameters": PARAMETERS}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
    call = StreamedCall()
    for event in _stream_events(url, endpoint.headers, body, timeout_s):
        call.events += 1
        for choice in get_objects(event, "choices"):
            call.text += get_text(choice, "delta.content")
            for part in get_objects(choice, "delta.tool_calls"):
                call.name = call.name or get_text(part, "function.name")
                call.arguments += get_text(part, "function.arguments")
    if not tools:
        text = call.text.strip()
        if not text:
            raise AnswerIsNo(f"{url}: the reply has no text", hint="does the reasoning parser swallow the answer?")
        return EndpointCall(protocol="openai chat", url=url, evidence=text[:120], events=call.events)
    call.require_call(url, "read_file")
    evidence = f"{call.name}({call.arguments})"
    return EndpointCall(protocol="openai chat with tools", url=url, evidence=evidence, events=call.events)


@dataclass
class StreamedCall:
    """The parts of a reply that have arrived."""

    events: int = 0
    name: str = ""
    arguments: str = ""
    text: str = ""

    def require_call(self, url: str, wanted: str, suffix: str = "") -> None:
        """Raise AnswerIsNo unless the tool `wanted` was called with PATH."""
        if not self.name:
            text = f"{self.text[:120]!r}{suffix}"
            raise AnswerIsNo(f"{url}: answered without calling the tool: {text}", hint="is a tool parser set?")
        try:
            given = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            raise AnswerIsNo(f"{url}: the tool's arguments are not valid JSON: {self.arguments[:120]!r}") from None
        if self.name != wanted or get_text(given, "file_path") != PATH:
            raise AnswerIsNo(f"{url}: called {self.name}({self.arguments[:120]}) instead of {wanted} with {PATH}")


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
