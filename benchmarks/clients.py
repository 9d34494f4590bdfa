"""Load generators against a server whose schedule is known: what each costs, and how far off its figures are.

    python benchmarks/clients.py [--streams 256,1024,2048] [--repeat 3] [--background 1] [--json]

Compiles the server and the C client next to nothing but a C compiler, runs every client in turn (so that a noisy
machine is noisy for all), and prints one table of medians and ratios to the C client in the same round. Method:
benchmarks/README.md.
"""

import argparse
import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.spin import busy_programs

HERE = Path(__file__).resolve().parent
TTFT_MS, ITL_MS, TOKENS = 200, 20, 100
Row = dict[str, Any]


def main() -> int:
    """Measure and print."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder, busy_programs(options.background):
        built = {name: compiled(name, Path(folder)) for name in ("schedule_server", "floor_client")}
        rows: list[Row] = []
        with server(built["schedule_server"]) as url:
            clients = chosen(built["floor_client"], Path(folder), options)
            for streams in options.streams:
                for number in range(options.repeat):
                    for name, client in clients.items():
                        rows.append(one(name, client, url, streams, number))
                        progress(rows[-1])
            rows += [flat_out(url, number) for number in range(options.repeat)]
    if options.json:
        print(json.dumps({"rows": rows, "summary": summary(rows)}, indent=2))
    else:
        show(summary(rows), options)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--streams", type=lambda text: [int(part) for part in text.split(",")], default=[256, 1024, 2048]
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--background", type=int, default=0, help="processes that keep a core busy meanwhile")
    parser.add_argument(
        "--vllm", default=shutil.which("vllm") or "", help="a vllm command to run `vllm bench serve` with"
    )
    parser.add_argument("--guidellm", default=shutil.which("guidellm") or "", help="a guidellm command")
    parser.add_argument("--aiperf", default=shutil.which("aiperf") or "", help="an aiperf command")
    parser.add_argument(
        "--tokenizer",
        default="",
        help="a tokenizer's folder (aiperf: its name on the hub), any: they insist on one",
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def compiled(name: str, folder: Path) -> Path:
    """A C program of this folder."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("clients.py needs a C compiler (cc, gcc or clang)")
    subprocess.run([compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")], check=True)
    return folder / name


@contextlib.contextmanager
def server(program: Path) -> Iterator[str]:
    """The exact-schedule server on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([str(program), str(port)])
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def get(url: str) -> Row:
    """A JSON answer of the server."""
    with urllib.request.urlopen(url, timeout=60) as reply:  # noqa: S310  (our own loopback server)
        return dict(json.load(reply))


def chosen(floor: Path, folder: Path, options: argparse.Namespace) -> dict[str, Callable[[str, int, int], Row]]:
    """The clients there are: ours and the C one always, others where they are installed."""
    clients: dict[str, Callable[[str, int, int], Row]] = {
        "C, epoll": lambda url, streams, requests: c_client(floor, url, streams, requests),
        "moebox": moebox,
    }
    others = {
        "vllm bench serve": (options.vllm, vllm_words),
        "guidellm": (options.guidellm, guidellm_words),
        "aiperf": (options.aiperf, aiperf_words),
    }
    for name, (program, words) in others.items():
        if program and options.tokenizer:
            clients[name] = functools.partial(other_client, program.split(), words, options.tokenizer, folder)
    return clients


def one(name: str, client: Callable[[str, int, int], Row], url: str, streams: int, number: int) -> Row:
    """One client's figures beside the truth."""
    get(f"{url}/control?ttft_us={TTFT_MS * 1000}&itl_us={ITL_MS * 1000}")
    row = client(url, streams, 2 * streams)
    truth = get(f"{url}/truth")
    return {
        "client": name,
        "streams": streams,
        "round": number,
        **row,
        "cpu_us_per_token": row["cpu_s"] / max(1, row["tokens"]) * 1e6,
        "true_mean_ttft_ms": truth["mean_ttft_ms"],
        "true_p99_itl_ms": truth["p99_itl_ms"],
        "ttft_error": row["mean_ttft_ms"] / truth["mean_ttft_ms"] - 1,
        "itl_error": row["p99_itl_ms"] / truth["p99_itl_ms"] - 1,
    }


def c_client(program: Path, url: str, streams: int, requests: int) -> Row:
    """The floor."""
    words = [str(program), url.rpartition(":")[2], str(streams), str(requests), str(TOKENS)]
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, timeout=600).stdout))


def moebox(url: str, streams: int, requests: int) -> Row:
    """Ours, one worker process; its CPU time is that of the worker from the first request to the last."""
    from moebox.bench.measure import measure_load
    from moebox.bench.probe import probe_endpoint
    from moebox.core.endpoint import endpoint_from_url
    from moebox.core.measure import Load, Workload

    endpoint = endpoint_from_url(url, "schedule")
    subject = probe_endpoint(endpoint)
    get(f"{url}/control")  # forget the look
    load = Load(concurrency=streams, requests=requests, workers=1)
    result = measure_load(subject, Workload(output_tokens=TOKENS), load, scrape_metrics=False).result
    client = result.client
    return {
        "tokens": result.total_output_tokens,
        "cpu_s": client.cpu_s,
        "wall_s": result.duration,
        "mean_ttft_ms": result.ttft.mean,
        "p99_itl_ms": result.itl.p99,
        "clock": client.clock,
        "client_limited": result.client_limited,
        "merged_share": client.merged_share,
        "estimated_share": client.estimated_share,
        "peak_rss_bytes": client.peak_rss_bytes,
    }


Words = Callable[[str, str, Path, int, int], tuple[list[str], Path]]  # url, tokenizer, folder, streams, requests


def other_client(
    program: list[str], words: Words, tokenizer: str, folder: Path, url: str, streams: int, requests: int
) -> Row:
    """Someone else's; its CPU time includes starting up, so that of a run of one request is taken off."""
    from moebox.bench.importers import load_results

    idle = spent(program, words(url, tokenizer, folder, 1, 1)[0])
    get(f"{url}/control")
    rest, saved = words(url, tokenizer, folder, streams, requests)
    busy = spent(program, rest)
    (result,) = load_results(saved)
    # What some tools say instead: aiperf the gaps between chunks, guidellm means of requests.
    gap = next(result[key] for key in ("p99_itl_ms", "p99_chunk_gap_ms", "p99_tpot_ms") if key in result)
    return {
        "tokens": requests * TOKENS,
        "cpu_s": max(0.0, busy - idle),
        "wall_s": result["duration"],
        "mean_ttft_ms": result["mean_ttft_ms"],
        "p99_itl_ms": gap,
    }


def spent(program: list[str], words: list[str]) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*program, *words], capture_output=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(f"{program[0]} failed: {(done.stderr or done.stdout).decode(errors='replace')[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def vllm_words(url: str, tokenizer: str, folder: Path, streams: int, requests: int) -> tuple[list[str], Path]:
    """`vllm bench serve`."""
    words = ["bench", "serve", "--backend", "openai-chat", "--base-url", url, "--model", "schedule"]
    words += ["--endpoint", "/v1/chat/completions", "--tokenizer", tokenizer, "--disable-tqdm"]
    words += ["--dataset-name", "random", "--random-input-len", "256", "--random-output-len", str(TOKENS)]
    words += ["--num-prompts", str(requests), "--max-concurrency", str(streams)]
    words += ["--percentile-metrics", "ttft,tpot,itl", "--save-result"]
    return [*words, "--result-dir", str(folder), "--result-filename", "vllm.json"], folder / "vllm.json"


def guidellm_words(url: str, tokenizer: str, folder: Path, streams: int, requests: int) -> tuple[list[str], Path]:
    """`guidellm run` (0.8)."""
    saved = folder / "guidellm.json"
    words = ["run", "--backend", f"kind=openai_http,target={url},model=schedule"]
    words += ["--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={requests}"]
    words += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--disable-console"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens=256,output_tokens={TOKENS}"]
    return [*words, "--output", f"kind=json,path={saved}"], saved


def aiperf_words(url: str, tokenizer: str, folder: Path, streams: int, requests: int) -> tuple[list[str], Path]:
    """`aiperf profile` (0.13)."""
    words = ["profile", "--model", "schedule", "--url", url, "--endpoint-type", "chat", "--streaming", "--ui", "none"]
    words += ["--concurrency", str(streams), "--request-count", str(requests), "--tokenizer", tokenizer]
    words += ["--synthetic-input-tokens-mean", "256", "--output-tokens-mean", str(TOKENS)]
    return [*words, "--artifact-dir", str(folder / "aiperf")], folder / "aiperf" / "profile_export_aiperf.json"


def flat_out(url: str, number: int) -> Row:
    """As fast as the server can send: tokens a second that one worker takes in."""
    get(f"{url}/control?ttft_us=0&itl_us=0")
    row = moebox(url, 64, 4000)
    return {
        "client": "moebox, flat out",
        "streams": 64,
        "round": number,
        **row,
        "tok_s": row["tokens"] / row["wall_s"],
        "tok_per_cpu_s": row["tokens"] / row["cpu_s"],
    }


def progress(row: Row) -> None:
    """One line to stderr."""
    print(
        f"{row['client']:>18} {row['streams']:>5}  {row['cpu_us_per_token']:6.2f} us/token  "
        f"TTFT {row['mean_ttft_ms']:.1f} of {row['true_mean_ttft_ms']:.1f}  "
        f"P99 ITL {row['p99_itl_ms']:.1f} of {row['true_p99_itl_ms']:.1f} ms",
        file=sys.stderr,
    )


def summary(rows: list[Row]) -> list[Row]:
    """Medians over rounds; CPU also as the median of ratios to the C client of the same round."""
    floor = {(r["streams"], r["round"]): r["cpu_us_per_token"] for r in rows if r["client"] == "C, epoll"}
    found = []
    for client, streams in dict.fromkeys((row["client"], row["streams"]) for row in rows):
        same = [row for row in rows if (row["client"], row["streams"]) == (client, streams)]
        line: Row = {"client": client, "streams": streams, "rounds": len(same)}
        if "tok_s" in same[0]:
            line |= {key: statistics.median(row[key] for row in same) for key in ("tok_s", "tok_per_cpu_s")}
        else:
            keys = ("cpu_us_per_token", "mean_ttft_ms", "true_mean_ttft_ms", "p99_itl_ms", "true_p99_itl_ms")
            line |= {key: statistics.median(row[key] for row in same) for key in keys}
            line["cpu_ratio"] = statistics.median(
                row["cpu_us_per_token"] / floor[streams, row["round"]] for row in same
            )
            line |= {key: statistics.median(abs(row[key]) for row in same) for key in ("ttft_error", "itl_error")}
            line["limited"] = sum(bool(row.get("client_limited")) for row in same)
            line["wrong_unsaid"] = sum(wrong_unsaid(row) for row in same)
        found.append(line)
    return found


def wrong_unsaid(row: Row) -> bool:
    """A P99 ITL that is more than 8% off in a result of ours that does not say that the client was the limit."""
    return abs(row["itl_error"]) > 0.08 and row.get("client_limited") is False


def show(lines: list[Row], options: argparse.Namespace) -> None:
    """The table."""
    print(
        f"\nFirst token after {TTFT_MS} ms, then one every {ITL_MS} ms; {options.repeat} rounds, medians; "
        f"{options.background} core(s) kept busy besides; {os.cpu_count()} cores.\n"
    )
    columns = ["client", "streams", "CPU s per 1M tokens", "ratio to C"]
    columns += ["mean TTFT, reported / true", "error", "P99 ITL, reported / true", "error"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for line in lines:
        if "tok_s" not in line:
            print(
                f"| {line['client']} | {line['streams']:,} | {line['cpu_us_per_token']:.1f} | {line['cpu_ratio']:.2f} "
                f"| {line['mean_ttft_ms']:.1f} / {line['true_mean_ttft_ms']:.1f} ms | {line['ttft_error']:.2%} "
                f"| {line['p99_itl_ms']:.1f} / {line['true_p99_itl_ms']:.1f} ms | {line['itl_error']:.2%} |"
            )
    for line in lines:
        if line["client"] == "moebox":
            print(
                f"\n{line['streams']:,} streams: client_limited in {line['limited']} of {line['rounds']} rounds; "
                f"P99 ITL more than 8% off without it: {line['wrong_unsaid']}."
            )
    for line in lines:
        if "tok_s" in line:
            print(
                f"\nFlat out, 64 streams, one worker: {line['tok_s']:,.0f} tok/s by the clock, "
                f"{line['tok_per_cpu_s']:,.0f} tok per CPU second."
            )


if __name__ == "__main__":
    sys.exit(main())
