#!/usr/bin/env bash
# Proves and measures the CUDA backend on a machine with a GPU, which needs no
# package registry: what tests/gpu/build.sh built elsewhere is run. Where that
# is not there but nvcc is, kernels and engine are built here first, without the
# server (that takes minutes, which are not counted below).
#
#   tests/gpu/run.sh [--programs FOLDER] [--out FOLDER] [--seconds S]
#
#   --programs   default: build/gpu-programs
#   --out        default: gpu-results
#   --seconds    of everything, default 480
#
# In this order, each step with a time limit: the fragments' layout, the
# kernels against their twins, the engine against the CPU backend and the
# oracle, compute-sanitizer on a part of the kernels' cases (skipped where it is
# not there, and says so), the benchmark. Writes OUT/gpu.json, OUT/gpu.md and a
# log a step. Exit code: 0; 1 a step failed; 2 wrong arguments; 3 no GPU, or
# nothing to run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

programs=$root/build/gpu-programs
out=gpu-results
seconds=480
while [ $# -gt 0 ]; do
  case "$1" in
    --programs) programs=${2:?--programs needs a folder} ;;
    --out) out=${2:?--out needs a folder} ;;
    --seconds) seconds=${2:?--seconds needs a number} ;;
    *)
      sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
  shift 2
done

# KF_GPU_PRETEND, KF_GPU_BENCH_FLAGS and KF_COMPUTE_SANITIZER (a path, or none)
# are for tests of this script, where there is no GPU.
if [ ! -e /dev/nvidia0 ] && [ -z "${KF_GPU_PRETEND:-}" ] &&
  ! nvidia-smi -L >/dev/null 2>&1; then
  echo "run.sh: there is no NVIDIA GPU here" >&2
  exit 3
fi

if ! compgen -G "$programs/*_gpu" >/dev/null; then
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    echo "run.sh: nothing in $programs; building here"
    (cd "$root" && cmake --preset cuda &&
      cmake --build build/cuda -j "$(nproc)" --target gpu_programs)
    programs=$root/build/cuda/gpu
  else
    echo "run.sh: nothing in $programs (tests/gpu/build.sh fills it), and no" \
      "nvcc here" >&2
    exit 3
  fi
fi

mkdir -p "$out"
# The golden test's cases, from wherever the program was built.
export KF_GOLDEN_FILE=$root/tests/golden/cases.json
begin=$SECONDS
failures=0
steps_json=()
steps_md=()

left() { echo $((seconds - (SECONDS - begin))); }

# record NAME OUTCOME SECONDS
record() {
  printf '%-44s %s, %d s\n' "$1" "$2" "$3"
  steps_json+=("$(printf '{"name": "%s", "outcome": "%s", "seconds": %d}' \
    "$1" "$2" "$3")")
  steps_md+=("| $1 | $2 | $3 |")
}

# step NAME LIMIT RESERVE COMMAND...: runs it for at most LIMIT seconds, and so
# that RESERVE seconds are left for what follows. Its output goes to a log, of
# which the end is shown if it fails. Sets `outcome`.
step() {
  local name=$1 limit=$2 room code=0 at=$SECONDS
  local log=$out/${name//[ \/]/_}.log
  room=$(($(left) - $3))
  shift 3
  if [ "$room" -lt "$limit" ]; then limit=$room; fi
  if [ "$limit" -lt 1 ]; then
    outcome="SKIPPED: no time"
    record "$name" "$outcome" 0
    return 0
  fi
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 || code=$?
  case $code in
    0) outcome=passed ;;
    124 | 137) outcome="TIME LIMIT of $limit s" ;;
    *) outcome="FAILED ($code)" ;;
  esac
  record "$name" "$outcome" $((SECONDS - at))
  if [ "$code" -ne 0 ]; then tail -n 30 "$log"; fi
}

# A test that does not end, or has no time, has not passed.
must_pass() {
  step "$@"
  if [ "$outcome" != passed ]; then failures=$((failures + 1)); fi
}

# --- tests, in an order in which the first failure says most ---
sanitizer_reserve=$((seconds / 5))
bench_reserve=$((seconds * 2 / 5))
reserve=$((sanitizer_reserve + bench_reserve))
kernel_tests=()
engine_tests=()
for program in "$programs"/*_gpu; do
  case $(basename "$program") in
    cuda_fragments_test_gpu) ;;
    cuda_backend_test_gpu | cuda_golden_test_gpu | cuda_engine_test_gpu | \
      cuda_bench_test_gpu)
      engine_tests+=("$program")
      ;;
    *) kernel_tests+=("$program") ;;
  esac
done
echo "== the fragments' layout"
must_pass fragments $((seconds / 16 + 1)) "$reserve" \
  "$programs/cuda_fragments_test_gpu"
echo "== kernels against their twins"
for program in "${kernel_tests[@]}"; do
  must_pass "$(basename "$program" _gpu)" $((seconds / 8 + 1)) "$reserve" \
    "$program"
done
echo "== the engine against the CPU backend and the oracle"
for program in "${engine_tests[@]}"; do
  must_pass "$(basename "$program" _gpu)" $((seconds / 5 + 1)) "$reserve" \
    "$program"
done

# --- compute-sanitizer: it slows kernels 10 to 100 times, so that every 16th
# case of each kernel test is run, and what has no time is left out ---
echo "== compute-sanitizer"
sanitizer=${KF_COMPUTE_SANITIZER:-$(command -v compute-sanitizer || true)}
if [ -z "$sanitizer" ] && [ -x /usr/local/cuda/bin/compute-sanitizer ]; then
  sanitizer=/usr/local/cuda/bin/compute-sanitizer
fi
if [ -z "$sanitizer" ] || [ "$sanitizer" = none ]; then
  record "compute-sanitizer" "SKIPPED: it is not on this machine" 0
else
  for tool in memcheck racecheck synccheck; do
    tool_end=$((SECONDS + sanitizer_reserve / 3))
    for program in "$programs/cuda_fragments_test_gpu" "${kernel_tests[@]}"; do
      step "$tool $(basename "$program" _gpu)" $((tool_end - SECONDS)) \
        "$bench_reserve" \
        env GTEST_TOTAL_SHARDS=16 GTEST_SHARD_INDEX=0 \
        "$sanitizer" --tool "$tool" --error-exitcode 9 "$program"
      case $outcome in
        FAILED*) failures=$((failures + 1)) ;;
        *) ;; # what was cut short has found nothing so far
      esac
    done
  done
fi

# --- the benchmark: it plans for less than what is left, and shows its rows as
# they come ---
echo "== benchmark"
read -r -a bench_flags <<<"${KF_GPU_BENCH_FLAGS:---device cuda --sizes large}"
bench_at=$SECONDS
bench_code=0
rm -f "$out/results.json" "$out/results.md"
timeout --kill-after=5 "$(left)" "$programs/gpu_bench" "${bench_flags[@]}" \
  --seconds $(($(left) * 3 / 4)) --out "$out" 2>&1 |
  tee "$out/benchmark.log" || bench_code=$?
case $bench_code in
  0) outcome=passed ;;
  124 | 137) outcome="TIME LIMIT" ;;
  *) outcome="FAILED ($bench_code)" ;;
esac
record benchmark "$outcome" $((SECONDS - bench_at))
if [ "$bench_code" -ne 0 ]; then failures=$((failures + 1)); fi

# --- one JSON, one table ---
device=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm \
  --format=csv,noheader 2>/dev/null | head -n 1 || true)
{
  printf '{"device": "%s",\n "failures": %d,\n "seconds": %d,\n "steps": [\n  ' \
    "${device:-unknown}" "$failures" $((SECONDS - begin))
  (
    IFS='~'
    printf '%s' "${steps_json[*]}"
  ) | sed 's/~/,\n  /g'
  printf '],\n "benchmark": '
  cat "$out/results.json" 2>/dev/null || echo null
  printf '}\n'
} >"$out/gpu.json"
{
  printf '# On a GPU: %s\n\n| step | outcome | s |\n|---|---|---|\n' \
    "${device:-unknown}"
  printf '%s\n' "${steps_md[@]}"
  printf '\n'
  if [ -f "$out/results.md" ]; then
    cat "$out/results.md"
  else
    echo "The benchmark wrote nothing."
  fi
} >"$out/gpu.md"
rm -f "$out/results.json" "$out/results.md"
echo "run.sh: $failures failures in $((SECONDS - begin)) s;" \
  "$out/gpu.json, $out/gpu.md"
[ "$failures" -eq 0 ]
