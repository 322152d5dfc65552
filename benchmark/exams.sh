#!/usr/bin/env bash
# Hold the final exams of five trainings side by side on one GPU, each in a folder of its own under runs/exams, and put
# the results into the package and into the tables of README and docs.
#   bash benchmark/exams.sh cifar10.npz tinyshakespeare.txt
# An interrupted exam resumes with the plans and learning rates it had chosen; a finished one is
# not held again.
# RUNS="runs/general/?" examines other trainings than those in benchmark/controllers; ONLY="spirals digits-4" holds only these
# exams, and ships nothing; DEVICE is another device than cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
images=${1:?an .npz file of images} text=${2:?a text file}
folder=runs/exams
if [ -z "${RUNS:-}" ]; then python3 benchmark/unpack.py runs/controllers; fi
runs=${RUNS:-runs/controllers/p?}
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
