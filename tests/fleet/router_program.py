"""A router of some forty lines for these tests: it takes sglang-router's flags and sends connections round and round.

Installed by `conftest.router_venv` as the module sglang_router.launch_router of a small environment, with a version.
"""

import argparse
import asyncio
import contextlib
import itertools
from urllib.parse import urlsplit


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--worker-urls", nargs="+")
    given, _ = parser.parse_known_args()
    workers = [urlsplit(url) for url in given.worker_urls]
    turn = itertools.cycle(range(len(workers)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in workers:
            worker = workers[next(turn)]
            with contextlib.suppress(OSError):
                back, forth = await asyncio.open_connection(worker.hostname, worker.port)
                await asyncio.gather(copy(reader, forth), copy(back, writer))
                return
        writer.close()

    server = await asyncio.start_server(serve, given.host, given.port)
    async with server:
        await server.serve_forever()


asyncio.run(main())
