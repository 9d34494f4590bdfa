"""Existing routers: how each is started, and its configuration."""

import functools
import json
from dataclasses import dataclass, field

from moebox import codec
from moebox import yaml_text as yaml
from moebox.core import catalogue
from moebox.engines.assemble import LOOPBACK
from moebox.errors import BadInput, Unsupported, refuse_if
from moebox.loose import Document, get_object
from moebox_fleet.file import RouterKind, RouterSettings
from moebox_fleet.models_file import STARTUP_S
from moebox_fleet.route import BALANCE_ABSOLUTE, BALANCE_RELATIVE, Policy

# A dead member is detected at once by failing requests; these are for an idle one, and for one that is back.
HEALTH_S = 2
FAILURES, SUCCESSES = 2, 1
DATABASE = "DATABASE_URL"  # PostgreSQL, without which LiteLLM keeps no keys (docs.litellm.ai, virtual keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTraits:
    package: str
    module: str
    tested: str
    versions: tuple[str, ...]
    policies: dict[Policy, str]
    anthropic: bool  # supports /v1/messages
    health: str
    session_header: str = ""  # with which a client must name its conversation
    member_header: str = ""  # of replies, with the name of the member
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterMember:
    name: str
    root: str  # http://host:port, without /v1
    key_env: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStart:
    """How to start a router: arguments after the interpreter, files (name -> text), and variables."""

    argv: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    key_envs: tuple[str, ...] = ()


@functools.cache
def router_traits() -> dict[RouterKind, RouterTraits]:
    return {
        name: codec.decode(RouterTraits, row, where=f"routers.toml: {name}")  # type: ignore[misc]
        for name, row in catalogue.load_table("routers").items()
    }


def router_start(
    router: RouterSettings, model: str, members: tuple[RouterMember, ...], *, host: str = ""
) -> RouterStart:
    refuse_if(not members, "a fleet without members has nothing to route to", hint="[[member]] in the fleet file")
    hint = 'kind = "litellm", or `moebox switch` for one machine'
    refuse_if(router.users and router.kind != "litellm", f"{router.kind} has no keys of users", hint=hint)
    if router.kind == "litellm":
        return _litellm_start(router, model, members, host or router.host)
    return _sglang_start(router, members, host or router.host)


def metrics_port(router: RouterSettings) -> int:
    return router.metrics_port or (router.port + 1 if router.port < 65535 else router.port - 1)


def _sglang_start(router: RouterSettings, targets: tuple[RouterMember, ...], host: str) -> RouterStart:
    """sglang-router and vllm-router, which is a fork with the same flags."""
    keys = {target.key_env for target in targets}
    if keys not in ({""}, {router.key_env}):
        text = f"{router.kind} passes on the client's key, so members cannot have other keys"
        raise Unsupported(text, hint="give all members and the router the same key_env, or use litellm")
    argv = ["-m", router_traits()[router.kind].module, "--host", host, "--port", str(router.port)]
    argv += ["--worker-urls", *(target.root for target in targets)]
    argv += ["--policy", router_traits()[router.kind].policies[router.policy]]
    if router.policy == "prefix":
        argv += ["--balance-abs-threshold", str(BALANCE_ABSOLUTE), "--balance-rel-threshold", f"{BALANCE_RELATIVE:g}"]
    argv += ["--prometheus-host", host, "--prometheus-port", str(metrics_port(router))]
    argv += ["--worker-startup-timeout-secs", str(STARTUP_S), "--worker-startup-check-interval", "1"]
    argv += ["--health-check-interval-secs", str(HEALTH_S), "--health-check-endpoint", "/health"]
    argv += ["--health-failure-threshold", str(FAILURES), "--health-success-threshold", str(SUCCESSES)]
    return RouterStart(argv=tuple(argv), key_envs=(router.key_env,) if router.key_env else ())


def _litellm_start(router: RouterSettings, model: str, targets: tuple[RouterMember, ...], host: str) -> RouterStart:
    models: list[Document] = [
        {
            "model_name": model,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"{target.root}/v1",
                "api_key": f"os.environ/{target.key_env}" if target.key_env else "none",
                "weight": target.weight,
            },
            "model_info": {"id": target.name},
        }
        for target in targets
    ]
    settings: Document = {
        "routing_strategy": router_traits()["litellm"].policies[router.policy],
        "num_retries": 2,
        "allowed_fails": 1,
        "cooldown_time": 10,
    }
    if router.policy == "prefix":
        settings["optional_pre_call_checks"] = ["session_affinity", "prompt_caching"]
    config: Document = {"model_list": models, "router_settings": settings}
    config["litellm_settings"] = {"telemetry": False, "request_timeout": 7200}
    if router.key_env:
        config["general_settings"] = {"master_key": f"os.environ/{router.key_env}"}
    elif host in LOOPBACK:  # LiteLLM does not start without a key unless allowed to, which is safe only here
        config["general_settings"] = {"dangerously_permit_weak_or_unset_master_key": True}
    else:
        text = f"router.key_env: LiteLLM does not start without a key, and at {host} others could use it"
        raise BadInput(text, hint='e.g. key_env = "TEAM_KEY" under [router], and the key in that variable')
    files = {}
    if router.users:
        refuse_if(not router.key_env, "router.users needs router.key_env: the key that makes the others")
        config["general_settings"] = {
            **get_object(config, "general_settings"),
            "database_url": f"os.environ/{DATABASE}",
        }
        files["keys.sh"] = litellm_keys(router, model, host)
    # `python -m litellm` does not exist: its console script is this function.
    run = "import sys; from litellm import run_server; sys.exit(run_server())"
    keys = {router.key_env, *(target.key_env for target in targets)} - {""}
    return RouterStart(
        argv=("-c", run, "--config", "litellm.yaml", "--host", host, "--port", str(router.port)),
        files={"litellm.yaml": yaml.dump_yaml(config), **files},
        # Otherwise every start fetches a price list from GitHub, and waits if that cannot be reached.
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        key_envs=tuple(sorted({*keys, DATABASE} if router.users else keys)),
    )


def litellm_keys(router: RouterSettings, model: str, host: str) -> str:
    """A script that gives each user a key with its limits; LiteLLM keeps them in its database, and counts by key."""
    lines = [
        "#!/usr/bin/env bash",
        "# Run once while the router is up; spend and tokens by key: /key/list, /spend/keys.",
    ]
    lines += ["set -euo pipefail", *(f': "${{{user.key_env}:?holds a key}}"' for user in router.users.values())]
    for name, user in router.users.items():
        body: Document = {"key": f"${user.key_env}", "key_alias": name, "user_id": name, "models": [model]}
        body["max_parallel_requests"] = user.parallel
        body |= {"tpm_limit": user.tokens_per_minute} if user.tokens_per_minute else {}
        text = json.dumps(body).replace('"', '\\"')
        url = f"http://{host}:{router.port}/key/generate"
        lines.append(
            f'curl -fsS {url} -H "Authorization: Bearer ${router.key_env}" -H "Content-Type: application/json" \\'
        )
        lines.append(f'  -d "{text}" > /dev/null && echo {name}')
    return "\n".join(lines) + "\n"
