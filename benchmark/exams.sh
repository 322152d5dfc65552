#!/usr/bin/env bash
# Hold final exams of the five trainings in benchmark/general, side by side, each in a folder of its own:
#   bash benchmark/exams.sh "--tasks mnist1d-8 --plans 600" "--tasks digits-4" "--text tale.txt --no-thorough --plans 0"
# DEVICE is cuda if not given, FOLDER runs/exams. Then, for the tables of README and docs:
#   python benchmark/ship.py benchmark/general/g? --examined runs/exams/* && python docs/tables.py
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${FOLDER:-runs/exams}
mkdir -p "$folder"
number=0
for asked in "$@"; do
  number=$((number + 1))
  out="$folder/$number"
  # shellcheck disable=SC2086  # flags are words
  python3 -c 'from esper.cli import main; main()' exam benchmark/general/g? $asked --device "${DEVICE:-cuda}" --out "$out" \
    >"$out.log" 2>&1 &
done
wait
cat "$folder"/*.log
