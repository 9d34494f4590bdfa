"""No prompt is asked twice unless that is meant, and a prefix cache that answers all the same is called out."""

import json
from collections import Counter
from pathlib import Path

import pytest

from moebox.bench.validity import cached_prompts_flag, prefix_hit_rate
from moebox.cli import main
from moebox.core.measure import Workload
from moebox.store import Run
from tests.bench.server import HEAD, Peer, chunk, event, good, serving
from tests.sampling import one_in

FLAGS = ["--model", "m", "--output", "2", "--input", "24"]


def prompts(asked: list[dict[str, object]]) -> "Counter[str]":
    """What was asked, and how often."""
    return Counter(json.dumps(body.get("messages") or body.get("prompt")) for body in asked)


@pytest.mark.parametrize("kind", one_in(2, ["random", "code", "turns", "prefix"]))
def test_no_prompt_repeats_in_a_sweep_its_warm_up_or_a_second_run(kind: str) -> None:
    """Two sweeps with warm-up against one server: every prompt is new to it."""
    words = ["--workload", kind, "--concurrency", "1,2", "--requests", "3", "--set", "warmup=2"]
    words += ["--set", "workload.turns=1"] if kind == "turns" else []
    with serving(good) as server:
        for _ in range(2):
            assert main(["bench", server.url, *FLAGS, *words]) == 0
    found = prompts(server.asked)

    calibration = [text for text in found if text.startswith('[{"role": "user", "content": "x')]  # of code's length
    assert sum(found.values()) - sum(found[text] for text in calibration) == 2 * 2 * (3 + 2)
    assert not [text for text, times in found.items() if times > 1 and text not in calibration]


def test_no_prompt_repeats_in_a_search() -> None:
    """Each step of a search asks anew: four streams, two and one, none of which is quick enough."""
    with serving(good) as server:
        words = ["--search", "concurrency", "--slo", "ttft=1us", "--requests", "4", "--concurrency", "4"]
        assert main(["bench", server.url, *FLAGS, *words]) == 1

    assert len(server.asked) == 4 + 2 + 1
    assert max(prompts(server.asked).values()) == 1


def test_prefill_tests_ask_anew_except_for_the_warm_try(capsys: pytest.CaptureFixture[str]) -> None:
    """Each cold prompt is asked once more at once, and by no later run."""
    with serving(good) as server:
        for _ in range(2):
            assert main(["bench", server.url, "--model", "m", "--pp", "24", "--tg", "2", "--set", "repeat=2"]) == 0
    times = Counter(prompts(server.asked).values())

    assert times == {2: 4, 1: 4}


def test_reused_prompts_are_the_same_and_the_salt_is_kept(tmp_path: Path) -> None:
    """--reuse-prompts asks what its seed asked before; otherwise the file says which salt made the prompts."""
    files = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"]
    with serving(good) as server:
        for file, extra in zip(
            files, (["--set", "workload.reuse_prompts=true"], ["--set", "workload.reuse_prompts=true"], []), strict=True
        ):
            words = ["--requests", "2", "--set", "workload.seed=7", "-o", str(file), *extra]
            assert main(["bench", server.url, *FLAGS, *words]) == 0
    salts = [json.loads(file.read_text())["workload"]["salt"] for file in files]

    assert Counter(prompts(server.asked).values()) == {2: 2, 1: 2}
    assert salts[:2] == ["", ""]
    assert len(salts[2]) == 16


def test_prompts_of_a_file_go_on_and_are_called_out_when_they_run_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep goes on in the file; prompts that come round again are counted."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"question {i}"}) for i in range(5)))
    with serving(good) as server:
        words = [
            "--workload",
            "prompts",
            "--set",
            f"workload.file={file}",
            "--concurrency",
            "1,2",
            "--requests",
            "3",
            "--json",
        ]
        main(["bench", server.url, "--model", "m", "--output", "2", *words])
    results = json.loads(capsys.readouterr().out)["results"]

    assert [result["prompts_repeated"] for result in results] == [0, 1]
    assert "asked before" in results[1]["flags"][0]
    assert len(prompts(server.asked)) == 5


class Caching:
    """A server whose prefix cache answers a share of every prompt, shown in its metrics or its usage."""

    def __init__(self, share: float, *, usage: bool) -> None:
        self.share, self.usage = share, usage
        self.asked = 0

    def answer(self, peer: Peer, body: dict[str, object]) -> bool:
        """One token, a prompt of 1,000, so many of them from the cache."""
        self.asked += 1
        counts: dict[str, object] = {"prompt_tokens": 1000, "completion_tokens": 1}
        if self.usage:
            counts["prompt_tokens_details"] = {"cached_tokens": int(1000 * self.share)}
        peer.send(HEAD, chunk(event({"content": "a"})), chunk(event({}, finish="length")))
        peer.send(chunk(event(None, usage=counts)), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return True

    def metrics(self) -> str:
        """As vLLM writes them."""
        if self.usage:
            return ""
        hits = 1000 * self.asked * self.share
        return f"vllm:prefix_cache_queries_total {1000 * self.asked}\nvllm:prefix_cache_hits_total {hits}\n"


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize(
    ("share", "flagged"), one_in(2, [(0.02, True), (0.991, True), (0.005, False), (0.0, False)], unpack=True)
)
def test_a_cache_that_answers_fresh_prompts_is_a_red_flag(
    share: float, flagged: bool, usage: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, in the file and in the report."""
    cache = Caching(share, usage=usage)
    run = Run.create("cached")
    with serving(cache.answer, metrics=cache.metrics) as server:
        words = ["--input", "900", "--output", "1", "--requests", "4", "--run", run.id]
        assert main(["bench", server.url, "--model", "m", *words]) == 0
    shown = capsys.readouterr().out
    kept = run.read_json("measurements/random-c1.json")
    assert main(["report", run.id, "--md", "-o", str(tmp_path / "report.html")]) == 0
    report = (tmp_path / "report.md").read_text()

    assert kept["prefix_cache_hit_rate"] == pytest.approx(share, abs=0.002)
    assert kept["prompts_cached"] is flagged
    assert ("prefix cache" in shown) is flagged
    assert ("prefix cache" in report) is flagged


def test_a_workload_that_shares_its_prefix_is_not_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    """There a hit rate is what is measured."""
    cache = Caching(0.9, usage=True)
    with serving(cache.answer) as server:
        words = [
            "--workload",
            "prefix",
            "--set",
            "workload.prefix_tokens=800",
            "--input",
            "100",
            "--output",
            "1",
            "--json",
        ]
        main(["bench", server.url, "--model", "m", *words])
    result = json.loads(capsys.readouterr().out)

    assert result["prefix_cache_hit_rate"] == pytest.approx(0.9)
    assert not result["prompts_cached"]


def test_the_chat_template_is_not_a_repeated_prompt() -> None:
    """Tokens that open every prompt of any client may be cached."""
    assert not cached_prompts_flag(
        Workload(), prefix_hit_rate(prompt_tokens=1000, cached_tokens=64, server=None), template_share=0.064
    )
    assert cached_prompts_flag(
        Workload(), prefix_hit_rate(prompt_tokens=1000, cached_tokens=500, server=None), template_share=0.064
    )
    assert prefix_hit_rate(prompt_tokens=1000, cached_tokens=-1, server=None) is None


def test_a_preset_takes_overrides_and_refuses_what_it_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    """`--workload lambda --input 64 --output 16 --requests 4 --concurrency 2` asks just that."""
    with serving(good) as server:
        words = ["bench", server.url, "--model", "m", "--workload", "lambda"]
        code = main([*words, "--input", "64", "--output", "16", "--requests", "4", "--concurrency", "2", "--json"])
        result = json.loads(capsys.readouterr().out)
        refused = main([*words, "--workload", "code"])

    assert code == 0
    assert (result["max_concurrency"], result["num_prompts"], result["label"]) == (2, 4, "lambda-changed")
    assert {body["max_tokens"] for body in server.asked} == {16}
    assert refused == 2
    assert "--workload" in capsys.readouterr().err


def test_prefill_tests_refuse_the_flags_they_would_ignore(capsys: pytest.CaptureFixture[str]) -> None:
    """A concurrency beside --pp is a misunderstanding."""
    assert main(["bench", "http://127.0.0.1:9", "--model", "m", "--pp", "8", "--concurrency", "4"]) == 2
    assert "--concurrency" in capsys.readouterr().err


def test_metrics_are_read_past_a_proxy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """HTTP_PROXY is for the internet, not for the server under test."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    cache = Caching(0.5, usage=False)
    with serving(cache.answer, metrics=cache.metrics, tokenizes=True) as server:
        main(["bench", server.url, "--model", "m", "--requests", "2", "--output", "1", "--json"])
    result = json.loads(capsys.readouterr().out)

    assert result["server"] is not None
    assert result["tokenizer_id"].startswith("the server's /tokenize")
