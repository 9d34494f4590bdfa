#!/usr/bin/env bash
# Train the phantom anew with what moebox.phantom.lessons adds, on one GPU (about 25 minutes on an H200), and measure it.
# Leaves the weights in out/, for a person to look at the table before they replace those in src/moebox/phantom/weights.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=src:.
python -m training.tokenizer
python -m training.train --minutes "${FIRST_MINUTES:-10}" --workers 12 --lessons --out out/lessons1
python -m training.train --minutes "${SECOND_MINUTES:-14}" --workers 14 --no-draft --lessons --out out/lessons2 \
  --start out/lessons1 --seed 3 --long-after 0 --muon-lr 0.01 --adam-lr 0.001 \
  --boost needle=4,unknown=2,story=0.7,sums=0.8,characters=1.5,long_copy=1.5
python -m training.export out/lessons2/phantom.npz out/phantom-q8_0.gguf
python -m training.export out/lessons1/draft.npz out/draft-q8_0.gguf --draft
families=$(python -c 'from moebox.phantom.tasks import FAMILIES; from moebox.phantom.lessons import LESSONS; print(",".join((*FAMILIES, *LESSONS)))')
python -m training.evaluate out/phantom-q8_0.gguf --count "${COUNT:-500}" --families "$families" --out out/q8_0.json
for depth in 0.02 0.5 0.98; do
  python -m training.evaluate out/phantom-q8_0.gguf --families needle --count 20 --needle-chars 17000 --needle-depth "$depth"
done
