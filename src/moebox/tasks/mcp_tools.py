"""Tools of the user's own MCP servers, over stdio or streamable HTTP, through the official `mcp` package.

Optional: nothing else in moebox needs it. The connections live in an event loop on a thread of its own, shared by all
jobs; a server that dies ends the job that used it, and is started again for the next.
"""

import asyncio
import concurrent.futures
import os
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moebox.errors import BadInput, ExternalError, exception_text, refuse_if
from moebox.loose import Json
from moebox.tasks.tools import AgentTool, ToolRefused, ToolServerDied

START_S = 30.0
CALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAddress:
    """URL of a server, or the command that starts it."""

    name: str
    url: str = ""
    command: tuple[str, ...] = ()


def parse_addresses(given: Sequence[str]) -> list[McpAddress]:
    """Parse NAME=COMMAND or NAME=URL. Raise BadInput for anything else."""
    addresses = []
    for text in given:
        name, _, target = text.partition("=")
        wrong = not name.isidentifier() or not target.strip()
        refuse_if(wrong, f"--mcp {text}: write NAME=COMMAND or NAME=URL")
        if target.startswith(("http://", "https://")):
            addresses.append(McpAddress(name=name, url=target))
            continue
        try:
            addresses.append(McpAddress(name=name, command=tuple(shlex.split(target))))
        except ValueError as problem:
            raise BadInput(f"--mcp {text}: {problem}") from None
    names = {address.name for address in addresses}
    refuse_if(len(names) < len(addresses), "--mcp: two servers have the same name")
    return addresses


class McpServers:
    def __init__(self, wanted: Sequence[McpAddress], *, call_s: float = CALL_S) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ExternalError("--mcp needs the mcp package", hint="pip install 'moebox[mcp]'") from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._servers = [_McpServer(address, self._loop, call_s) for address in wanted]

    def tools(self) -> list[AgentTool]:
        """Tools of every server, which is started if it is not up. Raise ToolServerDied if one cannot be."""
        found: dict[str, AgentTool] = {}
        with self._lock:
            for server in self._servers:
                for tool in server.tools():
                    name = tool.name if tool.name not in found else f"{server.address.name}_{tool.name}"
                    found[name] = replace(tool, name=name)
        return list(found.values())

    def close(self) -> None:
        """Stop all servers that were started."""
        for server in self._servers:
            server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class _McpServer:
    def __init__(self, address: McpAddress, loop: asyncio.AbstractEventLoop, call_s: float) -> None:
        self.address, self._loop, self._call_s = address, loop, call_s
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._connection: concurrent.futures.Future[None] | None = None
        self._tools: list[AgentTool] = []

    def tools(self) -> list[AgentTool]:
        """The server's tools; it is started, or started again, first."""
        if self._client is not None:
            return self._tools
        ready: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._connection = asyncio.run_coroutine_threadsafe(self._connect(ready), self._loop)
        try:
            self._client, offered = ready.result(START_S)
        except concurrent.futures.TimeoutError:
            self.close()
            raise ToolServerDied(f"MCP server {self.address.name}: not up within {START_S:g} s") from None
        self._tools = [
            AgentTool(
                name=str(tool.name),
                description=str(tool.description or ""),
                parameters=dict(tool.input_schema),
                run=partial(self._call, str(tool.name)),
            )
            for tool in offered
        ]
        return self._tools

    def close(self) -> None:
        """Disconnect, and end a process that was started."""
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._connection is not None:
            concurrent.futures.wait([self._connection], timeout=10)
        self._client = self._stop = self._connection = None

    async def _connect(self, ready: "concurrent.futures.Future[Any]") -> None:
        """The whole life of the connection, in one task as the package requires."""
        from mcp import Client, MCPError
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self._stop = asyncio.Event()
        with open(os.devnull, "w") as devnull:  # noqa: ASYNC230  (a device)
            target: Any = self.address.url
            if self.address.command:
                command, *arguments = self.address.command
                target = stdio_client(StdioServerParameters(command=command, args=arguments), errlog=devnull)
            try:
                async with Client(target) as client:
                    ready.set_result((client, (await client.list_tools()).tools))
                    await self._stop.wait()
            except (OSError, MCPError, ValueError, ExceptionGroup) as problem:
                if not ready.done():
                    ready.set_exception(ToolServerDied(f"MCP server {self.address.name}: {_problem_text(problem)}"))

    def _call(self, name: str, given: Json) -> str:
        """Make one call. Raise ToolRefused for an error or no answer, ToolServerDied if the server is gone."""
        from mcp import MCPError

        client = self._client
        if client is None:
            raise ToolServerDied(f"MCP server {self.address.name} is gone")
        call = asyncio.run_coroutine_threadsafe(client.call_tool(name, dict(given)), self._loop)
        try:
            result = call.result(self._call_s)
        except concurrent.futures.TimeoutError:
            call.cancel()
            raise ToolRefused(f"{name} did not answer within {self._call_s:g} s") from None
        except (MCPError, OSError, ExceptionGroup) as problem:
            connection_closed = not hasattr(problem, "error") or "closed" in str(problem).lower()
            if not connection_closed:
                raise ToolRefused(f"{name}: {_problem_text(problem)}") from None
            self.close()
            server = f"MCP server {self.address.name}"
            raise ToolServerDied(f"{server} died in {name}: {_problem_text(problem)}") from None
        text = "\n".join(str(getattr(part, "text", f"({part.type})")) for part in result.content)
        if result.is_error:
            raise ToolRefused(text or f"{name} failed")
        return text or "(nothing)"


def _problem_text(problem: BaseException) -> str:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return exception_text(problem)
