"""Two phantom engines that exclude each other behind `moebox switch`: swaps under streams, and wrong answers counted.

    python -m benchmarks.model_swaps --swaps 20

Each round asks both models at once, streamed and not, and compares the name of the model in each reply and event.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import httpx2
from tests.embedded import phantom_recipe

from moebox.checkpoint import deploy
from moebox.store import Run
from moebox_fleet.model_proxy import ModelProxy
from moebox_fleet.model_switch import ModelSwitch
from moebox_fleet.models_file import ModelEntry, ModelsFile


async def swap_models(swaps: int, place: Path) -> None:
    names = ("one", "two")
    file = ModelsFile(models={name: ModelEntry(recipe="", alone=True) for name in names})
    deployments = {
        name: deploy(phantom_recipe(name=name, served_name=f"phantom-{name}", context=1024)) for name in names
    }
    run = Run.create("swaps", runs=place)
    switch = ModelSwitch(file, deployments, run, report=print)
    app = ModelProxy(switch).build_app()
    asked = wrong = 0

    def events() -> list[object]:
        return [event for event in run.read_events() if event.kind == "model.swapped"]

    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://switch", timeout=600) as client:

            async def ask(name: str, stream: bool) -> bool:
                body = {"model": name, "stream": stream, "temperature": 0, "max_tokens": 16}
                body["messages"] = [{"role": "user", "content": "Say hello."}]
                reply = await client.post("/v1/chat/completions", json=body)
                if reply.status_code != 200:
                    return False
                if not stream:
                    return bool(reply.json()["model"] == f"phantom-{name}")
                lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
                return {json.loads(line).get("model") for line in lines} == {f"phantom-{name}"}

            while len(events()) < swaps:
                found = await asyncio.gather(*(ask(name, stream) for name in names for stream in (False, True)))
                asked, wrong = asked + len(found), wrong + found.count(False)
        seconds = [event.seconds for event in events()]  # type: ignore[attr-defined]
        within = [event.low_s <= event.seconds <= event.high_s for event in events() if event.forecast_s]  # type: ignore[attr-defined]
    print(f"{len(seconds)} swaps, {asked} requests, {wrong} wrong; {sum(seconds) / len(seconds):.1f} s a swap")
    print(f"{sum(within)} of {len(within)} swaps within the range of their forecast")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=20)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(swap_models(parser.parse_args().swaps, Path(folder)))
