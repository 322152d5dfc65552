#!/usr/bin/env bash
# Train the recipe `budgeted`, examine it at equal compute in three settings it learned from and three it did not,
# measure what it grows at three prices, and compare twins with fixed depths on a text file: side by side on one GPU.
#   bash benchmark/budgeted.sh tinyshakespeare.txt          # into runs/budgeted; call it again to continue
# DEVICE=cpu runs on a CPU, which takes a day.
# SECONDS_LEFT=580 stops waiting after so many seconds; what runs goes on, and what has ended is not done again.
set -euo pipefail
cd "$(dirname "$0")/.."
text=${1:?a text file} folder=runs/budgeted left=${SECONDS_LEFT:-100000}
mkdir -p "$folder"
read -ra where <<<"${DEVICE:+--device $DEVICE}"  # by default that of the recipe: a GPU, in fp32
esper=(python3 -c 'from esper.cli import main; main()')

if [[ "${DEVICE:-cuda}" == cuda* ]] && command -v nvidia-cuda-mps-control >/dev/null; then # run at once on one GPU
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/esper-mps-$UID CUDA_MPS_LOG_DIRECTORY=/tmp/esper-mps-$UID
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
  nvidia-cuda-mps-control -d >/dev/null 2>&1 || true # it may be running
fi

once() { # once NAME COMMAND...: starts it in the background, unless it runs or has ended well
  local name=$1
  shift
  [ ! -e "$folder/$name.done" ] || return 0
  if [ -e "$folder/$name.pid" ] && kill -0 "$(cat "$folder/$name.pid")" 2>/dev/null; then return 0; fi
  setsid bash -c '"$@" >"$0.log" 2>&1 && touch "$0.done"' "$folder/$name" "$@" </dev/null >/dev/null 2>&1 &
  echo $! >"$folder/$name.pid"
}

for width in 32 64; do
  once "twins-$width" python3 benchmark/twins.py "$text" --width "$width" --budget 120 --device "${DEVICE:-cuda}"
done
if [ -e "$folder/run/config.json" ] && [ ! -e "$folder/run/controller.safetensors" ]; then
  once train "${esper[@]}" resume "$folder/run"
else
  once train "${esper[@]}" train budgeted --run-dir "$folder/run" "${where[@]}"
fi
while [ ! -e "$folder/train.done" ]; do
  [ $SECONDS -lt "$left" ] || exit 0
  kill -0 "$(cat "$folder/train.pid")" 2>/dev/null || { tail -n 5 "$folder/train.log"; exit 1; }
  sleep 2
done
for setting in text source-32 source-24 planted-4 waves-8 phrases-16 source-16 phrases-8 spirals-6; do
  case $setting in
    text) asked=(--text "$text") ;;
    source-16 | phrases-8 | spirals-6) asked=() ;; # prices only
    *) asked=(--tasks "$setting") ;;
  esac
  [ ${#asked[@]} -eq 0 ] || once "exam-$setting" "${esper[@]}" exam "$folder/run" --budgeted "${asked[@]}" --no-thorough \
    --plans 24 --rates 0.25 0.5 1 2 4 --tuned-on 8 --memory-budget 12GB "${where[@]}" --out "$folder/exams/$setting"
  [ "$setting" = text ] || once "prices-$setting" \
    python3 benchmark/prices.py "$folder/run" --settings "$setting" --device "${DEVICE:-cuda}"
done
while ls "$folder"/*.pid >/dev/null 2>&1 && [ "$(find "$folder" -maxdepth 1 -name '*.pid' | wc -l)" != \
  "$(find "$folder" -maxdepth 1 -name '*.done' | wc -l)" ]; do
  [ $SECONDS -lt "$left" ] || exit 0
  sleep 2
done
tail -n 20 "$folder"/*.log
[ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true
