#!/usr/bin/env bash
# Each scenario of keyformer-bench from its command to its table, with a tiny
# model and small loads: that they run and count, not how fast anything is.
# Called by ctest with the folder of the binaries.
set -euo pipefail

bin=${1:?usage: scenarios_test.sh BIN_FOLDER}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

# scenario NAME PATTERN FLAGS...: runs it; PATTERN (an extended regular
# expression) must match a line of its output.
scenario() {
  local name=$1 pattern=$2 code=0
  shift 2
  "$bin/keyformer-bench" --scenario "$name" --model "$work/tiny.gguf" \
    --server_flag=--dtype=f32 --server_flag=--threads=1 \
    --json "$work/$name.json" "$@" >"$work/out" 2>&1 || code=$?
  if [ "$code" -ne 0 ] || ! grep -qE -- "$pattern" "$work/out" ||
    ! grep -q "\"$name\": " "$work/$name.json"; then
    echo "FAILED $name: exit code $code; want 0, and /$pattern/ in:"
    cat "$work/out"
    faults=$((faults + 1))
  else
    echo "ok $name"
  fi
}

"$bin/make_tiny_model" --context 131072 "$work/tiny.gguf"

# Two whole requests of FULL; half of the prompt lets four run.
scenario budget '^\| 2 +\| KEYFORMER 50 % +\| 4 ' --pools 2 --seconds 0.3 \
  --steady_shape 600+40 --whole_shape 600+40
scenario stall '^\| 2000 \(none\) +\|' --streams 2 --stream_shape 64+100000 \
  --long_prompt 2000 --settle 0 --slices 256,0
scenario overload '^\| 3.0x .*\| 0 of [0-9]+ +\|' --seconds 1 \
  --small_shape 64+64
scenario memory '4 requests of 600 \+ 3000 .* 4 ran at once' \
  --large_shape 600+3000 --large_requests 4

cat >"$work/peer.sh" <<'END'
echo '{"prompt_tokens_per_second": 5, "decode_tokens_per_second": 0.01}'
END
scenario peers '^\| decode, 2 x 64 \+ 40 +\|.*\| 0 +\|' --rounds 1 \
  --peer "slow=sh $work/peer.sh" --peer_shapes 64+40 --peer_streams 2 \
  --peer_whole_shape 64+20
if ! grep -qE '^\| whole answers, 2 x 64 \+ 20 +\|' "$work/out"; then
  echo "FAILED peers: no whole answers"
  faults=$((faults + 1))
fi
scenario peers '^\| whole answers, 2 x 64 \+ 20 +\|' --rounds 1 \
  --peer_shapes "" --peer_streams 2 --peer_whole_shape 64+20
scenario growth '^\| 1024 to 1536 +\| [0-9.]+ +\| [0-9.]+ +\|$' \
  --growth_shape 64+2000
scenario share '^\| kf-engine +\| [0-9.]+ +\| [0-9.]+ % \|$' \
  --share_shape 64+2000 --share_streams 4
scenario neighbour '^\| 2 +\| [0-9]+ +\| [0-9]+ +\| [0-9.]+ +\|' --rounds 1 \
  --peer_streams 2 --neighbour_shape 64+200

# wrong NAME CODE PATTERN FLAGS...
wrong() {
  local name=$1 want=$2 pattern=$3 code=0
  shift 3
  "$bin/keyformer-bench" "$@" >"$work/out" 2>&1 || code=$?
  if [ "$code" -ne "$want" ] || ! grep -qE -- "$pattern" "$work/out"; then
    echo "FAILED $name: exit code $code, want $want; want /$pattern/ in:"
    cat "$work/out"
    faults=$((faults + 1))
  else
    echo "ok $name"
  fi
}
wrong no_scenario 2 scenario --scenario nothing --model "$work/tiny.gguf"
wrong no_model 2 "--model: want" --scenario memory
wrong bad_shape 2 'want prompt\+answer' --scenario memory \
  --model "$work/tiny.gguf" --large_shape 600x8
wrong no_model_file 1 'did not start|UNAVAILABLE' --scenario memory \
  --model "$work/missing.gguf"
wrong no_server 1 'cannot be started' --scenario memory \
  --model "$work/tiny.gguf" --server_binary "$work/nothing"

wrong no_peer 1 'failed: false' --scenario peers --model "$work/tiny.gguf" \
  --server_flag=--dtype=f32 --peer "none=false" --peer_shapes 64+4 \
  --peer_streams 1
wrong bad_peer 1 'want name=command' --scenario peers \
  --model "$work/tiny.gguf" --peer nothing

[ "$faults" -eq 0 ]
