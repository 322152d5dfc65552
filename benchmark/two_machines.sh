#!/usr/bin/env bash
# Train across two "machines": network namespaces of this one, joined by a cable (veth). One is killed, or its cable is
# pulled, the run is resumed on both, and must end as a run of two workers on one machine does.
#
# sudo -E benchmark/two_machines.sh [torchrun|cable|ray|all] (as root; needs iproute2). One core each is enough.
set -euo pipefail

what=${1:-all}
python=${PYTHON:-python}
work=$(mktemp -d)
one=esper-one-$$ two=esper-two-$$
cable_one=veth1-$$ cable_two=veth2-$$
run=(train smoke_workers --exam 0 --learn.updates 12 --checkpoint-every 3)
for n in 0 1 2 3; do run+=("--fleets.$n.hosts" 4 "--fleets.$n.env.group" 1); done
export OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0

in_one() { ip netns exec "$one" env GLOO_SOCKET_IFNAME="$cable_one" "$@"; }
in_two() { ip netns exec "$two" env GLOO_SOCKET_IFNAME="$cable_two" "$@"; }
end_all_in() { ip netns pids "$1" 2>/dev/null | xargs -r kill -9 2>/dev/null || true; }
updates() { cat "$1/reports.jsonl" 2>/dev/null | wc -l; }
wait_for() { # FOLDER UPDATES
    for _ in $(seq 600); do
        [ "$(updates "$1")" -ge "$2" ] && return
        sleep 0.1
    done
    echo "no $2 updates in $1 after a minute" >&2
    tail -n 20 "$work/one.log" >&2
    exit 1
}
clean_up() {
    end_all_in "$one"
    end_all_in "$two"
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

ip netns add "$one"
ip netns add "$two"
ip link add "$cable_one" netns "$one" type veth peer name "$cable_two" netns "$two"
ip -n "$one" addr add 10.77.0.1/24 dev "$cable_one"
ip -n "$two" addr add 10.77.0.2/24 dev "$cable_two"
for space in "$one" "$two"; do ip -n "$space" link set lo up; done
ip -n "$one" link set "$cable_one" up
ip -n "$two" link set "$cable_two" up

compare() { # FOLDER FOLDER
    "$python" - "$@" <<'PYTHON'
import json, sys
from pathlib import Path
from esper.leyline.tensor_files import read
from esper.tamiyo.controller_files import CONTROLLER_FORMAT
one, other = map(Path, sys.argv[1:])
weights, others = (read(folder / "controller.safetensors", CONTROLLER_FORMAT)[0] for folder in (one, other))
assert all(weights[name].equal(others[name]) for name in weights), "other weights"
reports = [[json.loads(line) | {"seconds": 0} for line in open(folder / "reports.jsonl")] for folder in (one, other)]
assert reports[0] == reports[1], "other reports"
print("the same weights and reports")
PYTHON
}

port=29500
on_both() { # ARGUMENTS of esper: begin on both machines
    port=$((port + 1))
    local torchrun=("$python" -m torch.distributed.run --nnodes 2 --nproc-per-node 1)
    torchrun+=(--master-addr 10.77.0.1 --master-port "$port")
    in_one "${torchrun[@]}" --node-rank 0 -m esper "$@" > "$work/one.log" 2>&1 &
    first=$!
    in_two "${torchrun[@]}" --node-rank 1 -m esper "$@" > "$work/two.log" 2>&1 &
    second=$!
}
ended() { # both must end well
    wait "$first" || { cat "$work/one.log"; exit 1; }
    wait "$second" || { cat "$work/two.log"; exit 1; }
}

if [ "$what" = torchrun ] || [ "$what" = cable ] || [ "$what" = all ]; then
    "$python" -m esper "${run[@]}" --workers 2 --run-dir "$work/local" > /dev/null
fi
if [ "$what" = torchrun ] || [ "$what" = all ]; then
    echo "torchrun: the second machine is killed"
    on_both "${run[@]}" --run-dir "$work/killed"
    wait_for "$work/killed" 4
    end_all_in "$two"
    wait "$second" || true
    wait "$first" && { echo "the first machine did not notice" >&2; exit 1; }
    grep "esper:" "$work/one.log"
    echo "stopped after update $(updates "$work/killed"); resumed on both"
    on_both resume "$work/killed"
    ended
    compare "$work/killed" "$work/local"
fi
if [ "$what" = cable ] || [ "$what" = all ]; then
    echo "torchrun: the cable is pulled (this takes two minutes)"
    on_both "${run[@]}" --learn.updates 400 --run-dir "$work/cut"
    wait_for "$work/cut" 4
    ip -n "$two" link set "$cable_two" down
    pulled=$SECONDS
    wait "$first" && { echo "the first machine did not notice" >&2; exit 1; }
    echo "noticed after $((SECONDS - pulled)) seconds"
    grep "esper:" "$work/one.log"
    end_all_in "$two"
    wait "$second" || true
    ip -n "$two" link set "$cable_two" up
fi
if [ "$what" = ray ] || [ "$what" = all ]; then
    RAY_AUTH_TOKEN=$("$python" -c "import secrets; print(secrets.token_hex(16))") # of this cluster alone
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
    echo "Ray: the second machine is killed, and the run goes on with one worker"
    in_one ray start --head --node-ip-address 10.77.0.1 --port 6379 --num-cpus 1 --include-dashboard false \
        --temp-dir "$work/ray1" > "$work/ray.log" 2>&1 || { cat "$work/ray.log"; exit 1; }
    in_two ray start --address 10.77.0.1:6379 --node-ip-address 10.77.0.2 --num-cpus 1 >> "$work/ray.log" 2>&1 \
        || { cat "$work/ray.log"; exit 1; }
    in_one "$python" -m esper "${run[@]}" --ray --address 10.77.0.1:6379 --workers 2 --least 1 \
        --run-dir "$work/ray" > "$work/one.log" 2>&1 &
    first=$!
    wait_for "$work/ray" 4
    end_all_in "$two"
    wait "$first" || { cat "$work/one.log"; exit 1; }
    "$python" - "$work/ray" <<'PYTHON'
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
updates = [json.loads(line)["update"] for line in open(folder / "reports.jsonl")]
assert updates == list(range(12)), updates
assert (folder / "controller.safetensors").exists()
print("done, with no report twice or missing")
PYTHON
fi
