#!/usr/bin/env bash
# Train five controllers side by side on one machine, each into a folder of its own under runs; those that were stopped
# go on. Words at the end are flags of `esper train`, for those that are new.
#   bash benchmark/trainings.sh                         # five of `general` into runs/g1 to runs/g5, for a GPU
#   RECIPE=further bash benchmark/trainings.sh --exam 0 # five that go on from benchmark/general/g1 to g5, into runs/f?
#   RECIPE=wider bash benchmark/trainings.sh --exam 0   # and five that go on from those, into runs/w?
#   RECIPE=practice bash benchmark/trainings.sh --exam 0 # and from those, into runs/p?
# Then keep them: python benchmark/ship.py runs/p?
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${RECIPE:-general} folder=${FOLDER:-runs}
mkdir -p "$folder"
esper() { python3 -c 'from esper.cli import main; main()' "$@"; }
pids=()
for n in $(seq "${COUNT:-5}"); do
  run="$folder/${recipe:0:1}$n"
  case $recipe in
    further) which=(--rng-seed $((10 + n)) --warm-start.run "benchmark/general/g$n") ;;
    wider) which=(--rng-seed $((20 + n)) --warm-start.run "benchmark/further/f$n") ;;
    practice) which=(--rng-seed $((30 + n)) --warm-start.run "benchmark/wider/w$n") ;;
    *) which=(--rng-seed "$n") ;;
  esac
  if [ -e "$run/config.json" ]; then
    esper resume "$run" >>"$run.log" 2>&1 &
  else
    esper train "$recipe" "${which[@]}" --run-dir "$run" "$@" >"$run.log" 2>&1 &
  fi
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
tail -n 3 "$folder/${recipe:0:1}"*.log
exit $failed
