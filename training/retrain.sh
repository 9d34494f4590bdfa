#!/usr/bin/env bash
# Train the phantom on from the committed weights, on one GPU that is lent by calls of limited length.
#
#     bash training/retrain.sh SECONDS FOLDER
#
# The first call starts the training in the background; every call waits for SECONDS at most, shows the log and leaves
# the newest weights in FOLDER, in pieces of 15 MiB. Given again it goes on waiting, or goes on from the last checkpoint
# where the training is no longer there. MINUTES is the length of the training, PYTHON the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
until=$((SECONDS + $1))
folder=$2
work=out/next
python=${PYTHON:-python3}
export PYTHONPATH="src:.:${LIBS:-gpu/train-libs}" OMP_NUM_THREADS=1
mkdir -p "$work" "$folder"
log=$work/train.log
running() { [ -f "$work/pid" ] && kill -0 "$(cat "$work/pid")" 2>/dev/null; }
finished() { grep -q '^finished' "$log" 2>/dev/null; }
start() {
  # shellcheck disable=SC2086
  setsid nohup "$python" -m training.train --minutes "${MINUTES:-21}" --workers "${WORKERS:-14}" --start weights \
    --out "$work" --seed 5 --muon-lr 0.012 --adam-lr 0.0012 --long-after 0.03 ${MORE:-} >>"$log" 2>&1 </dev/null &
  echo $! >"$work/pid"
}
starts=0
while [ "$SECONDS" -lt "$until" ] && ! finished; do
  if ! running; then
    [ "$starts" -lt 3 ] || break
    starts=$((starts + 1))
    start
  fi
  sleep 2
done
tail -n 64 "$log" | cut -c1-1500
if finished; then echo "all done"; elif running; then echo "still training"; else echo "NOT RUNNING: call again"; fi
for name in phantom draft; do
  if [ -f "$work/$name.npz" ]; then split -b 15M -d "$work/$name.npz" "$folder/$name.npz."; fi
done
cp "$log" "$folder/train.log"
if [ -f "$work/log.json" ]; then cp "$work/log.json" "$folder/log.json"; fi
