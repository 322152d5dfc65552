#!/usr/bin/env bash
# Train five controllers side by side on one machine, each into a folder of its own under runs; those that were stopped
# are resumed. Words at the end are flags of `esper train`.
#   bash benchmark/trainings.sh                         # five of `general` into runs/g1 to runs/g5, for a GPU
#   RECIPE=mnist1d COUNT=2 bash benchmark/trainings.sh  # two of `mnist1d` into runs/m1 and runs/m2
# Then keep them: python benchmark/ship.py runs/g?
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${RECIPE:-general} folder=${FOLDER:-runs}
mkdir -p "$folder"
esper() { python3 -c 'from esper.cli import main; main()' "$@"; }
pids=()
for n in $(seq "${COUNT:-5}"); do
  run="$folder/${recipe:0:1}$n"
  if [ -e "$run/config.json" ]; then
    esper resume "$run" >>"$run.log" 2>&1 &
  else
    esper train "$recipe" --rng-seed "$n" --run-dir "$run" "$@" >"$run.log" 2>&1 &
  fi
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
tail -n 3 "$folder/${recipe:0:1}"*.log
exit $failed
