#!/usr/bin/env bash
# Hold the final exams of the five trainings in benchmark/general side by side on one GPU, each in a folder of its own
# under runs/exams, and put them into the package and the tables of README and docs.
#   bash benchmark/exams.sh cifar10.npz tinyshakespeare.txt
# ONLY="spirals digits-4" holds only these and puts them nowhere else; DEVICE is another device than cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
images=${1:?an .npz file of images} text=${2:?a text}
folder=runs/exams
flags() {
  case $1 in
    images) echo --images "$images" --no-thorough --plans 0 --memory-budget 16GB ;;
    text) echo --text "$text" --no-thorough --plans 0 --memory-budget 16GB ;;
    mnist1d-*) echo --tasks "$1" --plans 600 --memory-budget 12GB ;;
    *) echo --tasks "$1" --plans 300 --memory-budget 12GB ;;
  esac
}
read -ra order <<<"${ONLY:-mnist1d-4 mnist1d-8 mnist1d-16 digits-4 digits-6 spirals planted images text}"
[ ! -e "$folder" ] || { echo "$folder holds exams already: move it away" >&2; exit 1; }
mkdir -p "$folder"
pids=()
for name in "${order[@]}"; do
  # shellcheck disable=SC2046  # flags are words
  python3 -c 'from esper.cli import main; main()' exam benchmark/general/g? $(flags "$name") \
    --device "${DEVICE:-cuda}" --out "$folder/$name" >"$folder/$name.log" 2>&1 &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
cat "$folder"/*.log
[ $failed = 0 ] || { echo "not all exams could be held: nothing is shipped" >&2; exit 1; }
[ -z "${ONLY:-}" ] || exit 0
python3 benchmark/ship.py benchmark/general/g? --examined "${order[@]/#/$folder/}"
python3 docs/tables.py
