"""The run that a command about a server keeps its results in: one of its own, or one that is there."""

from moebox.cli.output import talk
from moebox.core.endpoint import Endpoint
from moebox.errors import BadInput
from moebox.store import Run
from moebox.store.summary import summarize
from moebox.stream.limits import simulated

NO_MODEL = "a simulation answers here: its speed is a forecast, and its text means nothing"


def new_run(kind: str, endpoint: Endpoint) -> Run:
    """One of its own, marked where no model answers."""
    simulation = simulated(endpoint)
    if simulation:
        talk().print(NO_MODEL, style="yellow", soft_wrap=True)
    return Run.create(f"{kind}-{endpoint.model}", simulation=simulation)


def joined(name: str, endpoint: Endpoint) -> Run:
    """The run called `name`; BadInput where it is about another model, or another moebox is at work on it."""
    run = Run.open(name)
    told = summarize(run)
    if told.model and told.model != endpoint.model:
        text = f"{run.id} is about {told.model}, and {endpoint.base_url} serves {endpoint.model}"
        raise BadInput(text, hint="without --run the results get a run of their own")
    if run.held and told.unended and run.read_pipeline():  # an engine that is up holds its run as well
        raise BadInput(
            f"`moebox run` is at work on {run.id}: {told.unended}", hint="without --run, or when it has ended"
        )
    kept = Run.joined(name)
    if simulated(endpoint) and not told.simulation:
        raise BadInput(f"{run.id} is of a real engine, and a simulation answers at {endpoint.base_url}")
    return kept
