#!/usr/bin/env bash
# keyformer-sim from its command line: what it prints and its exit codes. Called
# by ctest with the binary.
set -euo pipefail

sim=${1:?usage: sim_cli_test.sh KEYFORMER_SIM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

# expect NAME CODE PATTERN COMMAND...
expect() {
  local name=$1 code=$2 pattern=$3 got=0
  shift 3
  "$@" >"$work/out" 2>&1 || got=$?
  if [ "$got" -ne "$code" ] || ! grep -qE -- "$pattern" "$work/out"; then
    echo "FAILED $name: exit code $got, want $code; want /$pattern/ in:"
    cat "$work/out"
    faults=$((faults + 1))
  else
    echo "ok $name"
  fi
}

expect help 0 'Examples:' "$sim" --help
expect closed 0 'finished +12 +12' "$sim" --requests 12 --concurrency 4 \
  --output_tokens 64 --policies full,keyformer:0.5 --json "$work/a.json"
expect json 0 '"policy": "keyformer:0.5"' cat "$work/a.json"
expect config 0 '"device": "a100-80gb"' cat "$work/a.json"

# A written trace is the same load as the one that was drawn.
load=(--requests 200 --rate 9 --spread 0.7 --prompt_tokens 300
      --output_tokens 40 --seed 4)
"$sim" "${load[@]}" --write_trace "$work/t.csv"
expect fleet 0 'finished +200' "$sim" --trace "$work/t.csv" --device h200 \
  --model llama-8b --replicas 8 --balancer round_robin --json "$work/b.json"
"$sim" --trace "$work/t.csv" --json "$work/c.json" >"$work/c" 2>"$work/log"
"$sim" --trace - --json "$work/d.json" <"$work/t.csv" >"$work/d" 2>"$work/log"
expect same_table 0 identical diff --report-identical-files "$work/c" "$work/d"
expect same_json 0 identical diff --report-identical-files \
  "$work/c.json" "$work/d.json"

expect bad_trace 2 'line 1: column "0": unknown' "$sim" --trace - <<<'0,1,1'
expect no_trace 1 'no/such' "$sim" --trace /no/such/file
expect bad_device 2 'device: "b200", want' "$sim" --device b200
expect bad_policy 2 'policy: "lru", want' "$sim" --policies lru
expect no_room 2 'memory_share of a100-80gb' "$sim" --memory_share 0.1
expect nan 2 'nan, want a number from' "$sim" --spread nan
expect both 2 'rate' "$sim" --rate 3 --concurrency 2
expect no_output 1 'cannot write' "$sim" --requests 1 --json /no/such/x.json

echo "$faults faults"
[ "$faults" -eq 0 ]
