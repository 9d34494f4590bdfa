"""Run llama.cpp's server in a Python process, through the xllamacpp wheel.

`python -m moebox.serve.embedded` takes llama-server's flags as far as the wheel supports them; the key comes from
LLAMA_API_KEY. It is started and supervised like any engine; the rest of moebox does not import this module.
"""

import argparse
import json
import os
import signal
import sys
import threading
from typing import Any

from moebox.data import load_table

TABLE = load_table("embedded")


def argument_parser() -> argparse.ArgumentParser:
    """Parser of the supported llama-server flags."""
    parser = argparse.ArgumentParser(prog="moebox-embedded", allow_abbrev=False, description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--chat-template-kwargs", type=json.loads, default={})
    parser.add_argument("-ot", "--override-tensor", type=check_placement, action="append")
    for flag in TABLE["flags"]:
        default, choices = flag["default"], TABLE["values"].get(flag.get("values"))
        kind: Any = {"type": type(default), "choices": choices}
        if isinstance(default, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(*flag["names"], dest=flag.get("parameter"), default=default, **kind)
    return parser


def check_placement(rule: str) -> str:
    """Validate a placement rule: the wheel is built for the CPU."""
    if not rule.endswith("=CPU"):
        raise argparse.ArgumentTypeError(f"{rule}: the embedded engine has no GPU; only =CPU is supported")
    return rule


def server_parameters(given: argparse.Namespace) -> Any:
    import xllamacpp as x

    p = x.CommonParams()
    for flag in TABLE["flags"]:
        if name := flag.get("parameter"):
            value = getattr(given, name)
            if enum := flag.get("values"):
                value = getattr(getattr(x, enum), TABLE["values"][enum][value])
            setattr(p, name, value)
    p.model.path, p.endpoint_props, p.webui = given.model, False, False
    # More threads than this process may use would spin, and make llama.cpp many times slower.
    p.cpuparams.n_threads = given.threads or max(1, len(os.sched_getaffinity(0)))
    p.cpuparams_batch.n_threads = given.threads_batch or p.cpuparams.n_threads
    # The wheel's 3 prints what llama-server prints at 4; its own 4 adds every request and answer.
    p.verbosity = max(given.verbosity - 1, 0)
    p.default_template_kwargs = {key: json.dumps(value) for key, value in given.chat_template_kwargs.items()}
    if given.slot_save_path:
        p.slot_save_path = os.path.join(given.slot_save_path, "")  # llama.cpp appends the file name to it
    if given.alias:
        p.model_alias = {given.alias}
    if given.gpu_layers.isdigit():
        p.n_gpu_layers = int(given.gpu_layers)
    if given.chat_template:
        p.chat_template = given.chat_template
    if given.spec_type == "draft-simple":  # a draft model on the same threads
        p.speculative.mparams_dft.path, p.speculative.n_max = given.spec_draft_model, given.spec_draft_n_max
        p.speculative.cpuparams.n_threads = p.cpuparams.n_threads
        p.speculative.cpuparams_batch.n_threads = p.cpuparams_batch.n_threads
    if os.environ.get("LLAMA_API_KEY"):
        p.api_keys = [os.environ["LLAMA_API_KEY"]]
    return p


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    given = argument_parser().parse_args(argv)
    try:
        import xllamacpp
    except ImportError as problem:
        print(f"error: the embedded engine cannot be loaded: {problem}", file=sys.stderr)
        return 3
    try:
        server = xllamacpp.Server(server_parameters(given))
    except RuntimeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    done = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):  # after the server, whose own handlers stop only its loop
        signal.signal(sign, lambda *_: done.set())
    # llama.cpp's own log reports that it listens; a line printed here could overtake it.
    assert server.listening_address
    done.wait()
    print("embedded llama.cpp: stopping", flush=True)
    sys.stdout.flush()
    os._exit(0)  # the wheel's teardown joins threads that may be inside a request


if __name__ == "__main__":
    sys.exit(main())
