"""KV offload to RAM on a GPU: are returning conversations right, how much sooner do they answer, and was that foretold?

    python benchmarks/kv_offload_gpu.py MODELS/qwen --out DIR          # under 6 minutes on one H200, vLLM 0.26

Boots vLLM twice with few layers, dummy weights and a small cache (--num-gpu-blocks-override): without offload and with
the RAM tier that moebox renders. In each boot every conversation is sent (first turn), asked the same question (next
turn, from the GPU's cache) and asked it again after all the others (return). DIR gets result.json and the logs.

The weights are scaled by offload_weights.py, because vLLM's dummies ignore the prompt. An answer that came back from
RAM is computed from as many cached and new tokens as the one from the GPU's cache, so both must be equal in each token.
An answer that was computed in full went through other kernels, so some of those differ in any case; their count in the
boot without offload says how many. If answers hardly differ between conversations, equal ones prove nothing.
"""

import argparse
import importlib.util
import json
import math
import os
import random
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moebox import detect, http
from moebox.checkpoint import deploy
from moebox.core.calibration import Boot, Calibration
from moebox.core.deployment import Deployment
from moebox.core.recipe import KvTiers, Listen, Recipe, Runtime
from moebox.engines.engine import load_engine
from moebox.errors import ExternalError, MoeboxError
from moebox.flows import calibrate
from moebox.flows.calibrate_boot import BootMeasurement, TimingPoint
from moebox.flows.calibrate_timing import FIRST_ID, TimedEngine
from moebox.planner.kv_tiers import GIB, PrefixCache, cache_tiers, tier_range
from moebox.planner.schedule import Scheduler
from moebox.planner.simulate import scheduler_rules
from moebox.planner.speed import Speed
from moebox.serve.dummy import PROMPT_TOKENS
from moebox.serve.session import EngineSession, engine_session
from moebox.sizing.kv import tier_token_bytes
from moebox.store import Run
from moebox.stream.exchange import StreamExchange

BLOCK = 16  # tokens; vLLM's default
QUESTION = BLOCK - 1  # tokens, so that cached and new tokens are the same from the GPU's cache and from RAM
REPLY = 8  # tokens
CHUNK = 8192  # prompt tokens a step
TIMED_PROMPTS = (16, 128, 512, 2048)
REQUEST_S = 30.0
STOP_S = 20.0  # kept to stop an engine
TURNS = ("first", "next", "return")
GOALS = {"faster": 3.0, "forecast_error": 0.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer, with its time to first token and the prompt tokens that came from a cache (-1: not reported)."""

    answer: str
    ttft_s: float
    cached: int


class Conversations:
    """Random prompts of their own, and a question that all of them share."""

    def __init__(self, count: int, tokens: int, vocab: int) -> None:
        ids = range(FIRST_ID, min(vocab, PROMPT_TOKENS))
        self.question = random.Random("question").choices(ids, k=QUESTION)
        self.prompts = [random.Random(f"conversation {number}").choices(ids, k=tokens) for number in range(count)]

    def ask(self, session: EngineSession, prompt: list[int], deadline: float) -> Turn:
        """Send one prompt alone. Raise ExternalError if it fails or the time is up."""
        body = {"model": session.endpoint.model, "prompt": prompt, "max_tokens": REPLY, "temperature": 0}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        left_s = max(deadline - time.monotonic(), 0.01)
        pieces, first, cached = [], math.nan, -1
        with StreamExchange(
            session.endpoint, body, path="/completions", timeout_s=min(REQUEST_S, left_s), total_s=left_s
        ) as exchange:
            for at, event in exchange:
                if event.error:
                    raise ExternalError(event.error)
                if event.text:
                    pieces.append(event.text)
                    first = at if math.isnan(first) else first
                cached = event.usage[2] if event.usage else cached
        if not pieces:
            raise ExternalError("an answer without text")
        return Turn(answer="".join(pieces), ttft_s=first, cached=cached)

    def converse(self, session: EngineSession, deadline: float) -> dict[str, list[Turn]]:
        """All turns of all conversations, one at a time; the last prompt warms every kind of step up first."""
        *prompts, spare = self.prompts
        for prompt in (spare, spare + self.question, spare[::-1], spare + self.question):
            self.ask(session, prompt, deadline)
        turns: dict[str, list[Turn]] = {name: [] for name in TURNS}
        for prompt in prompts:
            turns["first"].append(self.ask(session, prompt, deadline))
            turns["next"].append(self.ask(session, prompt + self.question, deadline))
        for prompt in prompts:
            turns["return"].append(self.ask(session, prompt + self.question, deadline))
        return turns


def main() -> int:
    asked = arguments()
    home = Path(asked.out).resolve()
    home.mkdir(parents=True, exist_ok=True)
    for name in ("runs", "state", "calibrations"):
        os.environ[f"MOEBOX_{name.upper()}"] = str(home / name)
    end = time.monotonic() + asked.budget
    recipe = cut_recipe(asked, home)
    plain = deploy(recipe, detect.load_box(asked.box or None))
    size = (asked.conversations + 2) * (asked.tokens + BLOCK) * tier_token_bytes(plain.model, recipe) / GIB
    tiered = plain.with_recipe(replace(recipe, kv_tiers=KvTiers(ram_gib=math.ceil(1.2 * size))))
    talks = Conversations(asked.conversations + 1, asked.tokens, plain.model.vocab)
    result: dict[str, object] = {"asked": vars(asked), "model": plain.model.title, "layers": plain.model.layers}
    result |= {"load": os.getloadavg(), "ram_gib": tiered.recipe.tiers.ram_gib, "question_tokens": QUESTION}
    boots: dict[str, dict[str, list[Turn]]] = {}
    logs: dict[str, Path] = {}
    calibration: Calibration | None = None
    try:
        for name, deployment in (("without", plain), ("with", tiered)):
            run, began = Run.create(f"{name}-offload", runs=home / "runs"), time.monotonic()
            logs[name] = run.path / "engine.log"
            say(f"booting {name} offload; {end - began:.0f} s left")
            reserve_s = STOP_S if name == "with" else STOP_S + (end - began) / 2
            with engine_session(deployment, run, patience_s=asked.budget, deadline=end - reserve_s) as session:
                say(f"ready after {session.startup_s:.0f} s, {session.facts.kv_tokens or 0:,.0f} tokens of cache")
                boots[name] = talks.converse(session, end - STOP_S)
                result[f"{name}_boot"] = {
                    "startup_s": round(session.startup_s, 1),
                    "kv_tokens": session.facts.kv_tokens,
                    "argv": session.prepared.argv,
                    "cache_metrics": cache_metrics(session),
                }
                spare_s = end - time.monotonic() - 1.3 * (time.monotonic() - began) - STOP_S
                if name == "without" and spare_s > 0:
                    calibration = time_prompts(plain, session, asked.tokens + QUESTION, run, min(spare_s, 40.0))
    except MoeboxError as problem:
        result["failed"] = f"{problem.message} ({problem.hint})" if problem.hint else problem.message
    finally:
        scaled = []
        for name, path in logs.items():
            text = path.read_text(errors="replace") if path.exists() else ""
            (home / f"{name}-offload.log").write_text(text)
            scaled.append("offload_weights: weights scaled" in text)
        result["weights_scaled"] = all(scaled)
        result["turns"] = {
            name: {turn: [asdict(each) for each in answers] for turn, answers in boot.items()}
            for name, boot in boots.items()
        }
        result["seconds"] = round(asked.budget - (end - time.monotonic()), 1)
        save_result(home, result)
    if "failed" in result:
        print(f"failed: {result['failed']}; logs in {home}")
        return 1
    result |= compare_boots(boots) | {"forecast": forecasts(tiered, calibration, asked)}
    save_result(home, result)
    code = show(result)
    save_result(home, result)
    return code


def save_result(home: Path, result: dict[str, object]) -> None:
    (home / "result.json").write_text(json.dumps(result, indent=1, default=str))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", help="a folder with config.json and a tokenizer whose tokens decode to texts of their own"
    )
    parser.add_argument("--out", required=True, help="folder of the result and the logs")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4096, help="of a conversation, a multiple of 16")
    parser.add_argument(
        "--blocks", type=int, default=2048, help="of 16 tokens in the GPU's cache: 8 conversations of 4k"
    )
    parser.add_argument("--budget", type=float, default=340.0, help="seconds for everything")
    parser.add_argument("--entry", default="", help="words that start the engine; without, vLLM of this Python or PATH")
    parser.add_argument("--flags", default="{}", help="more flags of the engine, as JSON")
    parser.add_argument("--box", default="", help="the box of the forecast; this machine without")
    return parser.parse_args()


def cut_recipe(asked: argparse.Namespace, home: Path) -> Recipe:
    """A recipe of the model with few layers, and of the plugin that scales its weights."""
    model, plugin = home / "model", home / "plugin"
    shutil.copytree(asked.model, model, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": asked.layers}))
    facts = plugin / "offload_weights-1.0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("offload_weights.py"), plugin)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: offload_weights\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[vllm.general_plugins]\noffload_weights = offload_weights:register\n")
    # A script on PATH may set PYTHONPATH itself, which would hide the plugin.
    own = f"{sys.executable} -m vllm.entrypoints.cli.main serve" if importlib.util.find_spec("vllm") else ""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(plugin), os.environ.get("PYTHONPATH", ""))))
    return Recipe(
        name="kv-offload",
        engine="vllm",
        model=str(model),
        checkpoint=str(model),
        served_name="offload",
        context=2 * asked.tokens,
        max_seqs=8,
        batched_tokens=CHUNK,
        memory_utilization=0.9,
        runtime=Runtime(entry=asked.entry or own),
        listen=Listen(port=0),
        env={"VLLM_CACHE_ROOT": str(home / "cache")},
        flags={
            **load_engine("vllm").dummy_flags,
            "num-gpu-blocks-override": asked.blocks,
            "enable-prompt-tokens-details": True,
            **json.loads(asked.flags),
        },
    )


def cache_metrics(session: EngineSession) -> list[str]:
    """What the engine counts about its caches."""
    reply = http.get(f"{session.endpoint.server_url}/metrics", headers=session.endpoint.headers, timeout_s=10)
    words = ("offload", "prefix_cache", "external", "cached")
    lines = reply.text.splitlines() if reply.ok else []
    return [line for line in lines if not line.startswith("#") and any(word in line for word in words)][:200]


def time_prompts(
    subject: Deployment, session: EngineSession, longest: int, run: Run, budget_s: float
) -> Calibration | None:
    """A calibration from this boot, as `rehearse --measure` makes it, of the few steps that returning turns need."""
    deadline = time.monotonic() + budget_s
    cache = round(session.facts.kv_tokens or 0)
    planned = Boot(layers=subject.model.layers, cache_tokens=cache, startup_s=round(session.startup_s, 1))
    work = BootMeasurement(planned=planned, chunk=CHUNK, longest=2 * longest)
    target = TimedEngine(endpoint=session.endpoint, vocab=subject.model.vocab, deadline=deadline)
    prompts = [tokens for tokens in TIMED_PROMPTS if tokens < longest]
    points = [*(TimingPoint(context=tokens) for tokens in (*prompts, longest))]
    points.append(TimingPoint(batch=1, context=min(256, longest)))
    try:
        for point in points:
            work.time_point(target, point)
    except MoeboxError as problem:
        say(f"no calibration: {problem.message}")
        return None
    calibrator = calibrate.Calibrator(subject, run, budget_s, say)
    calibrator.done.append(work.boot)
    return calibrator.calibration()


def forecasts(deployment: Deployment, calibration: Calibration | None, asked: argparse.Namespace) -> dict[str, object]:
    """The time to first token of a returning turn by moebox's rules, from published rows and from timed prompts."""
    found: dict[str, object] = {}
    bare = replace(deployment.required_box, calibrations=())
    boxes = {"published rows": bare}
    if calibration:
        boxes["calibrated"] = replace(bare, calibrations=(calibration,))
    for name, box in boxes.items():
        on_box = deployment.on_box(box)
        speed = Speed.for_deployment(on_box)
        if (name == "calibrated") != (speed.measured is not None):
            raise SystemExit("the calibration does not apply to the recipe it was made with")
        rules = scheduler_rules(deployment.recipe, asked.blocks * BLOCK, speed)
        # Timed prompts were sent as these are, by token ids: HTTP is in them, and there is no template or tokenizer.
        request_s = 0.0 if speed.measured else speed.request_s
        row: dict[str, object] = {}
        for case, tiers in (("without", ()), ("with", cache_tiers(on_box, deployment.recipe.tiers))):
            cache, times, hits = PrefixCache(Scheduler(speed=speed, rules=rules), tiers=tiers), [], 0
            prompt = asked.tokens + QUESTION
            for number in range(asked.conversations):
                cache.keep_tokens(number, asked.tokens, 0)
            for number in range(asked.conversations):
                known, load_s, _ = cache.take_prefix(number, prompt, begins=False)
                times.append(request_s + load_s + speed.prefill_s(prompt - known, known))
                cache.keep_tokens(number, asked.tokens, 0)
                hits += known
            low, high = tier_range(speed)
            seconds = statistics.median(times)
            row[case] = {"ttft_s": seconds, "low_s": seconds * low, "high_s": seconds * high}
            row[case] |= {"hit_share": hits / prompt / asked.conversations}  # type: ignore[operator]
        found[name] = row | {"request_s": request_s}
    return found


def compare_boots(boots: dict[str, dict[str, list[Turn]]]) -> dict[str, object]:
    """Times and cached tokens by turn, and how many answers are equal to which."""
    ttft: dict[str, object] = {}
    for name, boot in boots.items():
        for turn, answers in boot.items():
            times = [each.ttft_s for each in answers]
            p90 = statistics.quantiles(times, n=10)[-1] if len(times) > 1 else times[0]
            cached = [each.cached for each in answers]
            ttft[f"{name} {turn}"] = {
                "median_s": statistics.median(times),
                "p90_s": p90,
                "mean_s": statistics.fmean(times),
            }
            ttft[f"{name} {turn}"] |= {"cached_median": statistics.median(cached), "cached_least": min(cached)}  # type: ignore[operator]

    def equal(one: tuple[str, str], other: tuple[str, str]) -> int:
        return sum(a.answer == b.answer for a, b in zip(boots[one[0]][one[1]], boots[other[0]][other[1]], strict=True))

    own = [each.answer for each in boots["with"]["next"]]
    back = [each.answer for each in boots["with"]["return"]]
    full = [each.answer for each in boots["without"]["return"]]
    return {
        "by_turn": ttft,
        "faster": ttft["without return"]["median_s"] / ttft["with return"]["median_s"],  # type: ignore[index]
        "equal": {
            "from RAM and from the GPU's cache, same boot": equal(("with", "return"), ("with", "next")),
            "from RAM and computed in full": equal(("with", "return"), ("without", "return")),
            "computed in full and from the GPU's cache, without offload": equal(
                ("without", "return"), ("without", "next")
            ),
            "from the GPU's cache in both boots": equal(("with", "next"), ("without", "next")),
        },
        "of": len(back),
        "from RAM, answer of another conversation": sum(
            answer != mine and answer in {*own, *full} for answer, mine in zip(back, own, strict=True)
        ),
        "distinct_answers": len(set(full)),
    }


def show(result: dict) -> int:  # type: ignore[type-arg]
    """The answer first, then what it rests on. The exit code is 0 if every goal is met."""
    say(f"{result['seconds']:.0f} s")
    count, turns = result["of"], result["by_turn"]
    blind = result["distinct_answers"] <= count // 2
    right = result["equal"]["from RAM and from the GPU's cache, same boot"]
    restored = turns["with return"]["cached_least"]
    problems = []
    if blind:
        problems.append(
            f"blind: {result['distinct_answers']} different answers of {count}, so equal ones prove nothing"
        )
    if right < count:
        problems.append(f"{count - right} of {count} answers from RAM differ from those from the GPU's cache")
    if restored <= 0:
        problems.append("not every return came from RAM")
    if result["faster"] < GOALS["faster"]:
        problems.append(f"{result['faster']:.1f}x shorter, {GOALS['faster']:g}x asked")
    measured = turns["with return"]["median_s"]
    lines = []
    for name, row in result["forecast"].items():
        error = row["with"]["ttft_s"] / measured - 1
        without = row["without"]["ttft_s"] / turns["without return"]["median_s"] - 1
        row["error"] = {"with": error, "without": without}
        soon, low, high = (row["with"][key] * 1e3 for key in ("ttft_s", "low_s", "high_s"))
        late = row["without"]["ttft_s"] * 1e3
        lines.append(f"| {name} | {soon:.1f} ({low:.1f} to {high:.1f}) | {error:+.0%} | {late:.1f} | {without:+.0%} |")
    best = result["forecast"].get("calibrated") or result["forecast"]["published rows"]
    if abs(best["error"]["with"]) > GOALS["forecast_error"]:
        problems.append(f"forecast {best['error']['with']:+.0%}, within {GOALS['forecast_error']:.0%} asked")
    print(f"{right} of {count} returning answers right; first token {result['faster']:.1f}x sooner with offload")
    print("\n".join(problems) or "all goals met")
    print("\n| turn | TTFT median, ms | p90 | cached tokens, median (least) |\n| --- | ---: | ---: | ---: |")
    for name, row in turns.items():
        cached = f"{row['cached_median']:,.0f} ({row['cached_least']:,})"
        print(f"| {name} | {row['median_s'] * 1e3:.1f} | {row['p90_s'] * 1e3:.1f} | {cached} |")
    print(
        "\n| forecast of a return | with offload, ms | off | without, ms | off |\n| --- | ---: | ---: | ---: | ---: |"
    )
    print("\n".join(lines))
    print("\nequal answers:")
    for name, number in result["equal"].items():
        print(f"  {number} of {count}: {name}")
    print(f"  {result['from RAM, answer of another conversation']} from RAM are another conversation's")
    print(f"  {result['distinct_answers']} different answers; weights scaled: {result['weights_scaled']}")
    return 1 if problems else 0


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
