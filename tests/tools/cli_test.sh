#!/usr/bin/env bash
# The command-line tools against a real server process with a tiny model: what
# they print, and every exit code they promise. Called by ctest with the folder
# of the binaries.
set -euo pipefail

bin=${1:?usage: cli_test.sh BIN_FOLDER SOURCE_FOLDER}
source=${2:?usage: cli_test.sh BIN_FOLDER SOURCE_FOLDER}
work=$(mktemp -d)
server_pid=
faults=0

finish() {
  [ -z "$server_pid" ] || kill -KILL "$server_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# expect NAME CODE PATTERN COMMAND...: runs it; PATTERN (an extended regular
# expression) must match its output, both streams together.
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

# Waits until the server says its ports, and sets grpc and http to them.
read_ports() {
  local line
  for _ in $(seq 600); do
    line=$(grep -m1 -oE 'gRPC port [0-9]+, HTTP port [0-9]+' "$1" || true)
    if [ -n "$line" ]; then
      read -r grpc http <<<"$(grep -oE '[0-9]+' <<<"$line" | xargs)"
      return
    fi
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "the server did not start:"
  cat "$1"
  exit 1
}

# The long context lets an answer run until it is cancelled.
"$bin/make_tiny_model" --context 131072 "$work/tiny.gguf"
"$bin/keyformer-server" --model "$work/tiny.gguf" --dtype f32 \
  --grpc_address 127.0.0.1:0 --http_address 127.0.0.1:0 \
  --kv_pool_bytes 64MiB --prefill_workspace_tokens 512 >"$work/log" 2>&1 &
server_pid=$!
read_ports "$work/log"
export KEYFORMER_SERVER=127.0.0.1:$grpc
kf=$bin/keyformer
prompt=$(printf 'abcdefgh%.0s' $(seq 40))

expect health 0 '^SERVING$' "$kf" health --wait 60
expect ready 0 'smoke: ok' env KEYFORMER="$kf" \
  "$source/deploy/smoke.sh" "127.0.0.1:$grpc" "127.0.0.1:$http"
expect healthcheck 0 '200 OK' env "KEYFORMER_HTTP_ADDRESS=0.0.0.0:$http" \
  "$source/deploy/healthcheck.sh"
expect healthcheck_v6 1 'Connection refused' env \
  "KEYFORMER_HTTP_ADDRESS=[::1]:1" "$source/deploy/healthcheck.sh"
expect healthcheck_off 0 'no HTTP' env KEYFORMER_HTTP_ADDRESS= \
  "$source/deploy/healthcheck.sh"
expect unknown_service 1 NOT_FOUND "$kf" health --service no.such.Service

expect generate 0 'evicted tokens  [0-9]+' "$kf" generate hello \
  --max_new_tokens 5 --ignore_eos
expect generate_json 0 '"generated_tokens": 5' "$kf" generate hello \
  --max_new_tokens 5 --ignore_eos --json --logprobs
expect generate_stdin 0 'prompt          320 tokens' "$kf" generate - \
  --max_new_tokens 2 < <(printf '%s' "$prompt")
expect generate_budget 0 'cache budget    40 tokens' "$kf" generate "$prompt" \
  --policy keyformer --budget_tokens 40 --max_new_tokens 20 --ignore_eos
expect generate_evicts 0 'evicted tokens  (29[0-9]|30[0-9])' "$kf" generate \
  "$prompt" --budget_tokens 40 --max_new_tokens 20 --ignore_eos
expect generate_full 0 'cache budget    full' "$kf" generate hello \
  --policy full --max_new_tokens 2
expect generate_ids 0 'finish          LENGTH' "$kf" generate \
  --token_ids 1,2,3 --max_new_tokens 3 --ignore_eos
expect generate_seed 0 '"seed": 9' "$kf" generate hello --seed 9 \
  --temperature 1 --max_new_tokens 2 --json
expect bad_field 1 'INVALID_ARGUMENT.*top_p' "$kf" generate hello --top_p 2
expect bad_nan 1 'INVALID_ARGUMENT.*temperature' "$kf" generate hello \
  --temperature nan
expect unread_option 1 'INVALID_ARGUMENT.*sinks.*KEYFORMER' "$kf" generate \
  hello --policy keyformer --sinks 4
expect samples 0 '^--- 2, LENGTH ---$' "$kf" generate hello --n 3 \
  --temperature 1 --seed 1 --max_new_tokens 4 --ignore_eos
expect samples_summary 0 'sequences       3' "$kf" generate hello --n 3 \
  --temperature 1 --max-new-tokens 4 --ignore-eos
expect beams 0 '^--- 1, score -[0-9.]+, LENGTH ---$' "$kf" generate hello \
  --beam-width 2 --length-penalty 0.5 --max_new_tokens 4 --ignore_eos
expect beam_sampled 1 'sampling.temperature: set, but sampling.beam' "$kf" \
  generate hello --beam_width 2 --temperature 1
for policy in full window h2o keyformer quest; do
  expect "policy_$policy" 0 'finish          LENGTH' "$kf" generate "$prompt" \
    --policy "$policy" --max_new_tokens 4 --ignore_eos
done
expect options 0 'cache budget    64 tokens' "$kf" generate "$prompt" \
  --budget_tokens 64 --recent_tokens 8 --scope layer --score_norm age \
  --positions cache --layer_weights 0.5,1.5 --max_new_tokens 8 --ignore_eos
# The prompt is eight letters over and over: some are lost, and signs say so.
expect show_cache 0 '\[-[a-h]+-\]' "$kf" generate "$prompt" \
  --budget-tokens 40 --max_new_tokens 8 --ignore_eos --show-cache
expect show_cache_share 0 'of the prompt   12.5 % held after it was read' \
  "$kf" generate "$prompt" --budget_tokens 40 --max_new_tokens 8 \
  --ignore_eos --show-cache
expect picture 0 '' "$kf" generate "$prompt" --budget_tokens 40 \
  --max_new_tokens 8 --ignore_eos --cache-picture "$work/kept.svg"
expect picture_svg 0 '^</svg>$' tail -n 1 "$work/kept.svg"
expect picture_nowhere 1 'no/such/kept.svg' "$kf" generate hello \
  --max_new_tokens 2 --cache_picture /no/such/kept.svg
expect report_json 0 '"retention"' "$kf" generate hello --max_new_tokens 2 \
  --cache_report summary --json
expect beam_flags 2 'only with --beam_width' "$kf" generate hello \
  --early-stopping
expect no_model 1 NOT_FOUND "$kf" generate hello --model nope
expect too_long 1 'INVALID_ARGUMENT|FAILED_PRECONDITION' "$kf" generate \
  "$prompt$prompt"
# 130,000 tokens take longer than this on any machine.
expect deadline 1 DEADLINE_EXCEEDED "$kf" generate hello --timeout 0.01 \
  --max_new_tokens 130000 --ignore_eos

expect no_prompt 2 'an input: one of' "$kf" generate
expect bad_flag 2 not_a_flag "$kf" generate hello --not_a_flag
expect bad_number 2 max_new_tokens "$kf" generate hello --max_new_tokens -1
expect not_utf8 2 'not UTF-8 at byte 3' "$kf" generate $'caf\xe9'
expect no_file 1 'no/such/file' "$kf" generate --file /no/such/file
expect no_server 3 'cannot connect' "$kf" info --server 127.0.0.1:1
expect help 0 'Examples:' "$kf" generate --help

expect chat 0 '\[4 tokens' "$kf" chat --max_new_tokens 4 --ignore_eos \
  < <(printf 'hi\nagain\n/reset\nhi\n/quit\nnever sent\n')
expect tokenize 0 '^104,105$' "$kf" tokenize hi --ids
expect tokenize_json 0 '"offsets":\[0,1\]' "$kf" tokenize hi --json
expect detokenize 0 '^hi$' "$kf" detokenize 104,105
expect info 0 'llama' "$kf" info
expect info_json 0 '"context_tokens": 131072' "$kf" info --json
expect load 0 'running +0' "$kf" load

expect bench 0 'requests +6 ok of 6' "$bin/keyformer-bench" --concurrency 3 \
  --requests 6 --prompt_tokens 30 --output_tokens 8 --json "$work/bench.json"
expect bench_json 0 '"output_tokens": 48' cat "$work/bench.json"
printf '{"arrival_ms": %s, "prompt_tokens": 9, "output_tokens": 3}\n' 0 5 9 \
  >"$work/trace.jsonl"
expect bench_trace 0 'requests +3 ok of 3' "$bin/keyformer-bench" \
  --trace "$work/trace.jsonl" --text_file "$work/trace.jsonl"
# Longer than what the server encodes at once.
seq 1 200000 >"$work/long.txt"
expect bench_text 0 'requests +2 ok of 2' "$bin/keyformer-bench" --requests 2 \
  --warmup 0 --prompt_tokens 20 --output_tokens 2 --text_file "$work/long.txt"
expect bench_errors 1 'INVALID_ARGUMENT|FAILED_PRECONDITION' \
  "$bin/keyformer-bench" --requests 2 --warmup 0 --prompt_tokens 4000
expect bench_usage 2 concurrency "$bin/keyformer-bench" --concurrency 0

mkdir "$work/texts"
expect calibrate_texts 1 'no .txt files' "$bin/keyformer-calibrate" \
  --texts "$work/texts" --out "$work/profiles.json"
for i in $(seq 10 30); do
  printf '%s: %s.\n\n' "$i" "$(seq -s ' ' "$i" $((i + 26)))"
done >"$work/texts/numbers.txt"
expect calibrate 0 '"calibrated" is in' "$bin/keyformer-calibrate" \
  --texts "$work/texts" --out "$work/profiles.json" --facts 1 \
  --fact_bytes 200 --prompt_tokens 64 --forced_tokens 4 --most_whole 1
expect calibrate_file 0 '"weights": \[' cat "$work/profiles.json"
expect calibrate_compare 0 'calibrated: +facts' "$bin/keyformer-calibrate" \
  --texts "$work/texts" --compare "$work/profiles.json" --facts 1 \
  --fact_bytes 200 --prompt_tokens 64 --forced_tokens 4
expect calibrate_probes 0 'prompts are in' "$bin/keyformer-calibrate" \
  --texts "$work/texts" --probes_out "$work/probes.json" --facts 1 \
  --fact_bytes 200 --prompt_tokens 64 --forced_tokens 4
expect calibrate_probes_file 0 '"kind":"fact","prompt":\[' \
  cat "$work/probes.json"
expect calibrate_usage 2 texts "$bin/keyformer-calibrate" --out x.json
expect calibrate_one_task 2 'probes_out' "$bin/keyformer-calibrate" \
  --texts "$work/texts" --out x.json --probes_out y.json
expect calibrate_no_task 2 'probes_out' "$bin/keyformer-calibrate" \
  --texts "$work/texts"

# Ctrl-C cancels the stream, and the server runs it no longer. The shell starts
# background jobs deaf to SIGINT, so SIGTERM is sent, which is treated alike.
"$kf" generate hi --max_new_tokens 100000 --ignore_eos \
  --logit_bias 257=-100 >"$work/cancelled" 2>&1 &
client=$!
while ! "$kf" load | grep -qE 'running +1' && kill -0 "$client"; do :; done
kill -TERM "$client"
code=0
wait "$client" || code=$?
if [ "$code" -ne 130 ] || ! grep -q 'finish          interrupted' \
  "$work/cancelled"; then
  echo "FAILED interrupt: exit code $code, want 130"
  tail -n 8 "$work/cancelled"
  faults=$((faults + 1))
fi
for _ in $(seq 100); do
  ! "$kf" load | grep -qE 'running +0' || break
  sleep 0.1
done
expect freed 0 'running +0' "$kf" load

kill -TERM "$server_pid"
code=0
wait "$server_pid" || code=$?
server_pid=
if [ "$code" -ne 0 ]; then
  echo "FAILED drain: the server's exit code is $code, want 0"
  tail -n 20 "$work/log"
  faults=$((faults + 1))
fi
expect gone 3 'cannot connect' "$kf" load

echo "$faults faults"
[ "$faults" -eq 0 ]
