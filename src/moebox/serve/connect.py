"""Client configuration for a live endpoint.

Keys are never written: files and printed commands refer to the environment variable that holds the key.
"""

import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from moebox import codec, files
from moebox.core.endpoint import Endpoint
from moebox.errors import BadInput
from moebox.loose import Json
from moebox.serve import jsonc

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
    home = files.config_home()
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
    folder = files.config_home() / "opencode"
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
