"""The run that a command about a server keeps its results in: one of its own, or one that is there."""

from moebox.cli.output import stderr_console
from moebox.core.endpoint import Endpoint
from moebox.errors import refuse_if
from moebox.runs.listing import summarize_run
from moebox.store import Run
from moebox.stream.limits import is_twin

SIMULATION_NOTE = "a simulation answers here: its speed is a forecast, and its text means nothing"


def warn_simulation(simulation: object) -> None:
    """That no model answers, where that is so."""
    if simulation:
        stderr_console().print(SIMULATION_NOTE, style="yellow", soft_wrap=True)


def create_run(kind: str, endpoint: Endpoint) -> Run:
    """One of its own, marked where no model answers."""
    simulation = is_twin(endpoint)
    warn_simulation(simulation)
    return Run.create(f"{kind}-{endpoint.model}", simulation=simulation)


def open_run(name: str, endpoint: Endpoint) -> Run:
    """The run called `name`; BadInput where it is about another model, or another moebox is at work on it."""
    run = Run.open(name)
    told = summarize_run(run)
    text = f"{run.id} is about {told.model}, and {endpoint.base_url} serves {endpoint.model}"
    hint = "without --run the results get a run of their own"
    refuse_if(told.model not in ("", endpoint.model), text, hint=hint)
    at_work = (
        run.is_locked and told.unfinished_part and run.read_pipeline()
    )  # an engine that is up holds its run as well
    text = f"`moebox run` is at work on {run.id}: {told.unfinished_part}"
    refuse_if(at_work, text, hint="without --run, or when it has ended")
    kept = Run.open_shared(name)
    real = is_twin(endpoint) and not told.simulation
    refuse_if(real, f"{run.id} is of a real engine, and a simulation answers at {endpoint.base_url}")
    return kept
