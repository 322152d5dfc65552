#!/usr/bin/env bash
# Train five controllers side by side on one machine, each into runs/gN; those that were stopped go on.
#   bash benchmark/trainings.sh                   # five of `general`, for a GPU
#   RECIPE=smoke COUNT=2 FOLDER=runs/try bash benchmark/trainings.sh
# Then keep them: python benchmark/ship.py runs/g1 runs/g2 runs/g3 runs/g4 runs/g5
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${FOLDER:-runs}
mkdir -p "$folder"
esper() { python3 -c 'from esper.cli import main; main()' "$@"; }
pids=()
for seed in $(seq "${COUNT:-5}"); do
  run="$folder/g$seed"
  if [ -e "$run/config.json" ]; then
    esper resume "$run" >>"$run.log" 2>&1 &
  else
    esper train "${RECIPE:-general}" --rng-seed "$seed" --run-dir "$run" >"$run.log" 2>&1 &
  fi
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
tail -n 3 "$folder"/g*.log
exit $failed
