"""`calibration.py` with the settings that the GPU figures are made with: 64 streams, 32,768 tokens, two stages.

    python benchmarks/calibration_gpu.py ENGINE MODELS/kimi --layers 4,8 --check 12 --stage calibrate --out DIR
    python benchmarks/calibration_gpu.py ENGINE MODELS/kimi --layers 4,8 --check 12 --stage check --out DIR

Two stages, so that each ends within ten minutes: two boots that calibrate, and the deeper one that they foretell.
MODELS holds folders with config.json and a tokenizer; weights are the engine's own dummies.
"""

import json
import sys

import calibration

SGLANG = {"attention-backend": "triton"}  # needs no FlashAttention


def main() -> int:
    """Hand over to calibration.py."""
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    engine, model, *rest = sys.argv[1:]
    usual = ["--engine", engine, "--model", model, "--streams", "64", "--context", "32768", "--chunk", "8192"]
    usual += ["--budget", "540", "--memory-utilization", "0.9" if engine == "vllm" else "0.88"]
    usual += ["--flags", json.dumps(SGLANG)] if engine == "sglang" else []
    sys.argv = [sys.argv[0], *usual, *rest]
    return calibration.main()


if __name__ == "__main__":
    sys.exit(main())
