#!/usr/bin/env bash
# Measure the engine on one GPU, in the order of what is asked first: kernels, laws, envs, fleets with their profiles.
#   bash benchmark/engine.sh runs/engine [cifar10.npz]     # 15 minutes; a folder for the results, and images to train on
# SECONDS_LEFT=560 begins nothing more after so many seconds; call it again to continue: what has ended is not done again.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder for the results} images=${2:-} left=${SECONDS_LEFT:-100000}
mkdir -p "$folder"
esper=(python3 -c 'from esper.cli import main; main()')

once() { # once NAME LIMIT COMMAND...: runs it, unless it has ended well before
  local name=$1 limit=$2
  shift 2
  [ ! -e "$folder/$name.done" ] && [ $SECONDS -lt "$left" ] || return 0
  echo "== $SECONDS s: $name"
  timeout "$limit" "$@" >"$folder/$name.txt" 2>"$folder/$name.log" && touch "$folder/$name.done"
  tail -n 12 "$folder/$name.txt"
}

fleet() { # fleet WORKLOAD HOSTS DECISIONS SEEDS...
  local work=$1 hosts=$2 decisions=$3
  shift 3
  once "fleet-$work" 150 "${esper[@]}" bench fleet --workload "$work" --hosts "$hosts" --precision bf16 \
    --decisions "$decisions" --seeds "$@" --json
}

profile() { # profile WORKLOAD
  once "profile-$1" 120 "${esper[@]}" bench profile --workload "$1" --hosts 64 --json
}

once blocks 60 python3 benchmark/cnn_blocks.py
once kernels 300 python3 -m pytest -q -o addopts="" --import-mode=importlib tests/kasmina/test_gpu_kernels.py
once laws 300 python3 -m pytest -q -o addopts="" --import-mode=importlib -m gpu tests/laws tests/tolaria tests/envs
once env 60 python3 benchmark/env_throughput.py --tasks spirals-6 --hosts 64 256 --rounds 8 --device cuda
fleet small2d 64 24 none live --steps 24 --validation 2560 # what a decision of the system reviewed before was
fleet cifar 64 24 none live
if [ -n "$images" ]; then
  once train 180 "${esper[@]}" train cifar10 --fleets.0.options.path "$images" --learn.updates 3 --exam 0 \
    --run-dir "$folder/run"
  cat "$folder/run/reports.jsonl"
fi
profile small2d
fleet tokens 64 24 none twins live
profile tokens
fleet tiny2d 256 100 none live
fleet mnist1d 256 100 none live
once lanes 150 python3 benchmark/lanes.py --lanes 0 8 0
once precision 150 "${esper[@]}" bench precision --task phrases --host gpt --json
profile cifar
