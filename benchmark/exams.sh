#!/usr/bin/env bash
# Hold the final exams of five trainings side by side on one GPU, each in a folder of its own under runs/exams, and put
# them into the package and the tables of README and docs.
#   bash benchmark/exams.sh cifar10.npz tinyshakespeare.txt
# Those that were interrupted go on with the plans and learning rates that they had chosen; those that are held already
# are left alone.
# RUNS="runs/f?" examines other trainings than those in benchmark/practice; ONLY="spirals digits-4" holds only these
# exams, and puts them nowhere else; DEVICE is another device than cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
images=${1:?an .npz file of images} text=${2:?a text}
folder=runs/exams runs=${RUNS:-benchmark/practice/p?}
flags() {
  case $1 in
    images) echo --images "$images" --no-thorough --plans 0 --tuned-on 12 --memory-budget 16GB ;;
    text) echo --text "$text" --no-thorough --plans 0 --tuned-on 12 --memory-budget 16GB ;;
    *) echo --tasks "$1" --plans 300 --memory-budget 12GB ;;
  esac
}
read -ra order <<<"${ONLY:-mnist1d-4 mnist1d-8 mnist1d-16 digits-4 digits-6 spirals planted images text}"
mkdir -p "$folder"
pids=()
for name in "${order[@]}"; do
  [ ! -e "$folder/$name/exam.json" ] || continue
  # shellcheck disable=SC2046,SC2086  # flags and runs are words
  python3 -c 'from esper.cli import main; main()' exam $runs $(flags "$name") \
    --device "${DEVICE:-cuda}" --out "$folder/$name" >"$folder/$name.log" 2>&1 &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
cat "$folder"/*.log
[ $failed = 0 ] || { echo "not all exams could be held: nothing is shipped" >&2; exit 1; }
[ -z "${ONLY:-}" ] || exit 0
# shellcheck disable=SC2086
python3 benchmark/ship.py $runs --examined "${order[@]/#/$folder/}"
python3 docs/tables.py
