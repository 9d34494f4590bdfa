"""The settings a person may pin on the command line of `plan` and `forecast`, and the box they are for."""

from dataclasses import dataclass, fields
from typing import Literal

from moebox.cli.flags import parse_count, parse_token_count
from moebox.core.plan import Goal
from moebox.planner.constraints import CommonConstraints, Constraints, parse_expert_counts


@dataclass(frozen=True, kw_only=True)
class PlanArgs(CommonConstraints):
    """What is given is honoured, or refused where it is known not to start; what is not is chosen.

    Attributes:
        engine: vllm, sglang, llama.cpp, ik_llama.cpp, ktransformers.
        checkpoint: A form of the model, such as int4, nvfp4, IQ3_K or Q4_X.
        tp: Tensor parallel size.
        pp: Pipeline stages.
        dp: Data-parallel attention groups of --tp GPUs each; experts are spread over all of them.
        ep: Expert parallel size, over all GPUs of --tp and --dp; 1 slices every expert instead.
        dcp: Decode context parallel size.
        kv: Cache type: fp8, bf16, f16, q8_0 or q4_0.
        memory_utilization: Share of each GPU to claim, such as 0.90.
        speculate: eagle3, mtp, ngram or none.
        context: Longest sequence, such as 65536 or 64k; `forecast` takes several.
        concurrency: Concurrent sequences; `forecast` takes several, such as 1,8,32.
        image: stock, or community for the patched vLLM image.
        experts_on_gpu: CPU+GPU engines: expert layers by GPU, head of the stack on the first and tail on the last,
            such as 3+3; 0 for none.
        ub: CPU+GPU engines: micro-batch; `forecast` takes 2048 for a pinned layout without it.
        mla: ik_llama.cpp: attention mode.
        threads: CPU+GPU engines: threads.
    """

    context: str | None = None
    concurrency: str | None = None
    image: Literal["stock", "community"] | None = None
    experts_on_gpu: str | None = None
    ub: int | None = None

    def constraints(self, *, goal: Goal = "throughput", bold: bool = False) -> Constraints:
        """The same as the planner takes it."""
        return Constraints(
            **{field.name: getattr(self, field.name) for field in fields(CommonConstraints)},
            goal=goal,
            bold=bold,
            context=parse_token_count("--context", self.context),
            concurrency=parse_count("--concurrency", self.concurrency),
            image=self.image,
            experts=None if self.experts_on_gpu is None else parse_expert_counts(self.experts_on_gpu),
            ubatch=self.ub,
        )
