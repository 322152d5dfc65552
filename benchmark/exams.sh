#!/usr/bin/env bash
# Hold the final exams of five trainings on one GPU, and put the results into the package and into the tables of README
# and docs.
#   bash benchmark/exams.sh cifar10.npz tinyshakespeare.txt
# `esper exam` holds the parts of an exam side by side, and resumes one that was interrupted.
# RUNS="runs/general/?" examines other trainings than those in benchmark/controllers; DEVICE is another device than cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
images=${1:?an .npz file of images} text=${2:?a text file}
folder=runs/exams
if [ -z "${RUNS:-}" ]; then python3 benchmark/unpack.py runs/controllers; fi
read -ra runs <<<"$(echo ${RUNS:-runs/controllers/p?})"
exam() { # exam NAME FLAGS...
  [ -e "$folder/$1/exam.json" ] ||
    python3 -c 'from esper.cli import main; main()' exam "${runs[@]}" --device "${DEVICE:-cuda}" --out "$folder/$1" "${@:2}"
}
exam tasks --tasks mnist1d digits spirals planted --plans 300 --memory-budget 12GB &
exam files --images "$images" --text "$text" --no-thorough --plans 0 --tuned-on 12 --memory-budget 16GB
wait $!
python3 benchmark/ship.py "${runs[@]}" --examined "$folder/tasks" "$folder/files"
python3 docs/tables.py
