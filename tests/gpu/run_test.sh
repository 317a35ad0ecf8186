#!/usr/bin/env bash
# tests/gpu/run.sh without a GPU: stand-ins for the programs, so that what it
# runs, in which order, and what it makes of failures and time limits is held.
#
#   run_test.sh GPU_BENCH    the real benchmark, which is run on the CPU
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bench=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KF_GPU_PRETEND=1 KF_GPU_BENCH_FLAGS="--device cpu --sizes tiny"
export KF_COMPUTE_SANITIZER=none

fail() {
  echo "run_test.sh: $*" >&2
  cat "$work/stdout" >&2
  exit 1
}

# program NAME LINE...: a stand-in that notes that it ran.
program() {
  local name=$1 path=$work/programs/$1
  shift
  {
    echo '#!/bin/sh'
    echo "echo $name \$GTEST_TOTAL_SHARDS >>$work/ran"
    printf '%s\n' "$@"
  } >"$path"
  chmod +x "$path"
}

fresh() {
  rm -rf "$work/programs" "$work/out" "$work/ran"
  mkdir -p "$work/programs"
  ln -s "$bench" "$work/programs/gpu_bench"
  program cuda_fragments_test_gpu
  program cuda_a_test_gpu
  program cuda_golden_test_gpu "test -f \"\$KF_GOLDEN_FILE\""
  program cuda_z_test_gpu
}

# run CODE [ARGUMENT...]: run.sh has to end with CODE.
run() {
  local want=$1 code=0
  shift
  "$here/run.sh" --programs "$work/programs" --out "$work/out" "$@" \
    >"$work/stdout" 2>&1 || code=$?
  [ "$code" -eq "$want" ] || fail "exit code $code, want $want"
}

# says TEXT: so does the table, and the JSON is one.
says() {
  python3 -m json.tool "$work/out/gpu.json" >/dev/null || fail "no JSON"
  grep -qF "$1" "$work/out/gpu.md" || fail "the table does not say: $1"
}

# All well: first the fragments, then kernels, then the engine.
fresh
run 0
[ "$(cut -d ' ' -f 1 "$work/ran" | tr '\n' ' ')" = "cuda_fragments_test_gpu \
cuda_a_test_gpu cuda_z_test_gpu cuda_golden_test_gpu " ] || fail "wrong order"
says '| cuda_z_test | passed |'
says '| compute-sanitizer | SKIPPED: it is not on this machine |'
says '| benchmark | passed |'
says "## The paper's Table 1"
python3 - "$work/out/gpu.json" <<'PY' || fail "the JSON lacks something"
import json, sys
run = json.load(open(sys.argv[1]))
assert run["failures"] == 0 and len(run["steps"]) == 6, run
titles = [s["title"] for s in run["benchmark"]["sections"]]
assert len(titles) == 8 and titles[0] == "Copy bandwidth", titles
PY

# A failing test fails the run, but ends nothing.
fresh
program cuda_a_test_gpu 'exit 1'
run 1
says '| cuda_a_test | FAILED (1) |'
says '| cuda_golden_test | passed |'
says '| benchmark | passed |'

# So does one that hangs.
fresh
program cuda_a_test_gpu 'sleep 100'
run 1 --seconds 40
says '| cuda_a_test | TIME LIMIT of 6 s |'
says '| cuda_z_test | passed |'

# compute-sanitizer: a part of the cases, each tool; what it finds fails.
fresh
cat >"$work/sanitizer" <<'SH'
#!/bin/sh
[ "$2" = racecheck ] && exit 9
shift 4
exec "$@"
SH
chmod +x "$work/sanitizer"
KF_COMPUTE_SANITIZER=$work/sanitizer run 1
says '| memcheck cuda_z_test | passed |'
says '| racecheck cuda_a_test | FAILED (9) |'
says '| synccheck cuda_fragments_test | passed |'
grep -q 'cuda_z_test_gpu 16' "$work/ran" || fail "sanitized without shards"

# A benchmark that fails leaves its table out, and the run fails.
fresh
rm "$work/programs/gpu_bench"
program gpu_bench 'exit 1'
run 1
says '| benchmark | FAILED (1) |'
says 'The benchmark wrote nothing.'

run 2 --no_such_flag
unset KF_GPU_PRETEND
if [ ! -e /dev/nvidia0 ] && ! command -v nvidia-smi >/dev/null; then
  fresh
  run 3
fi
echo "run_test.sh: passed"
