#!/usr/bin/env bash
# Hold the final exams of the five trainings in benchmark/general side by side on one GPU, each in a folder of its own,
# and put them into the package and the tables of README and docs. 15 minutes and 75 GB on an H200.
#   bash benchmark/exams.sh cifar10.npz tinyshakespeare.txt
# Settings to hold instead of all may be named in ONLY ("spirals digits-4"), another device in DEVICE.
set -euo pipefail
cd "$(dirname "$0")/.."
images=${1:?an .npz file of images} text=${2:?a text}
folder=runs/exams
plans=(--thorough --memory-budget 12GB --plans)
simple=(--no-thorough --memory-budget 16GB --plans 0 --rates 0.5 1 2)
declare -A asked=(
  [mnist1d-4]="--tasks mnist1d-4 ${plans[*]} 600"
  [mnist1d-8]="--tasks mnist1d-8 ${plans[*]} 600"
  [mnist1d-16]="--tasks mnist1d-16 ${plans[*]} 600"
  [digits-4]="--tasks digits-4 ${plans[*]} 200"
  [digits-6]="--tasks digits-6 ${plans[*]} 200"
  [spirals]="--tasks spirals ${plans[*]} 200"
  [planted]="--tasks planted ${plans[*]} 200"
  [images]="--images $images ${simple[*]}"
  [text]="--text $text ${simple[*]}"
)
order=(${ONLY:-mnist1d-4 mnist1d-8 mnist1d-16 digits-4 digits-6 spirals planted images text})
mkdir -p $folder
for name in "${order[@]}"; do
  # shellcheck disable=SC2086  # flags are words
  python3 -c 'from esper.cli import main; main()' exam benchmark/general/g? ${asked[$name]} --device "${DEVICE:-cuda}" \
    --out $folder/$name >$folder/$name.log 2>&1 &
done
wait
cat $folder/*.log
[ -n "${ONLY:-}" ] || python3 benchmark/ship.py benchmark/general/g? --examined "${order[@]/#/$folder/}"
[ -n "${ONLY:-}" ] || python3 docs/tables.py
