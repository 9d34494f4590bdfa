"""Running engines: list them, show their load, stop them."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.errors import BadInput
from moebox.serve import state
from moebox.serve import stop as stopping
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, render_page


async def list_engines(request: Request, *, site: WebSite) -> Response:
    """List the engines that moebox started and that are alive."""
    found = await run_in_threadpool(state.list_instances)
    alive = [instance for instance in found if instance.is_alive]
    return render_page("engines.html", title="Engines", here="engines", engines=alive)


def find_engine(name: str) -> state.Instance:
    found = next((instance for instance in state.list_instances() if instance.id == name), None)
    if found is None:
        raise NotFound(f"no engine called {name!r}", hint="the list of engines names those that run")
    return found


async def stop_engine(request: Request, *, site: WebSite) -> Response:
    """Stop an engine as `moebox down` does."""
    instance = await run_in_threadpool(find_engine, request.path_params["name"])
    if not instance.is_alive:
        raise BadInput(f"{instance.id} is not running")
    await run_in_threadpool(stopping.stop_instance, instance)
    return JSONResponse({"stopped": instance.id})
