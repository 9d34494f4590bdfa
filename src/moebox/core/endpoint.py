"""The endpoint of a served model."""

from dataclasses import dataclass, field

from moebox import redact
from moebox.escape import one_line

AUTH_STATUSES = (401, 403)  # the key is missing or wrong
KEY_HINT = "`--key-env NAME` names the variable that holds the key"
SIMULATION_HEADER = "x-moebox-simulation"  # of every reply of `moebox twin`: its speed, 1 for the forecast's


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server. The key is never printed, even if the server sends it back (redact.py)."""

    base_url: str  # ends in /v1
    model: str
    key: str | None = field(default=None, repr=False)
    key_env: str = ""  # the environment variable that holds the key; "" if moebox finds it by the URL
    engine: str = ""  # "" if unknown
    router: str = ""  # a router in front of it, which may hide the engine
    log: str = ""  # path of the engine's log, if moebox started it here
    context: int = 0  # tokens of the longest sequence, if known from elsewhere than the server

    def __post_init__(self) -> None:
        redact.remember_key(self.key)

    @property
    def server_url(self) -> str:
        """The URL without /v1, for /health and /metrics."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of a reply: the arguments are JSON, if the model wrote some."""

    id: str = ""
    name: str = ""
    arguments: str = ""


def faster_than_forecast(simulation: str) -> str:
    """Return what a simulation's header means for its figures, "" if it runs at the forecast speed."""
    meaning = f"it runs at {one_line(simulation, 12)}x its forecast speed, so its figures mean nothing for the box"
    return meaning if simulation not in ("", "1", "true") else ""  # earlier versions send "true"


def endpoint_from_url(url: str, model: str, *, key: str | None = None, engine: str = "") -> Endpoint:
    """Make an Endpoint from any of the usual spellings of its URL."""
    url = url if "://" in url else f"http://{url}"
    url = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions").rstrip("/")
    return Endpoint(base_url=url if url.endswith("/v1") else f"{url}/v1", model=model, key=key, engine=engine)
