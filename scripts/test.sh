#!/usr/bin/env bash
# Builds and tests the project.
#
#   scripts/test.sh                  dev build (warnings are errors), all tests
#   scripts/test.sh --full           and the stages below, one after another
#   scripts/test.sh --only asan,lint these stages alone
#
# Stages: dev    gcc build, every test, the oracle's vectors
#         asan   the tests under AddressSanitizer and UBSan (with CI=true not
#                the command-line tools')
#         tsan   kernels, at the machine's own instruction set, and engine
#                under ThreadSanitizer (with CI=true not what starts no threads)
#         fuzz   each fuzz target on its corpus, then KF_FUZZ_SECONDS (20) each;
#                clang with warnings as errors (with CI=true not the sources of
#                instruction sets above the baseline)
#         cuda   nvcc compiles the kernels, the static gates judge them; says so
#                and passes where there is no nvcc
#         lint   format, clang-tidy, include direction, shell, metric names
#                (with CI=true clang-tidy takes changed files alone)
#         image  builds the container image, runs it and calls it
#
# Installs missing Debian packages (as root; otherwise it names them and exits
# with 3). Prints the time of each stage; exit code 1 if any failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh

jobs=$(nproc)
all_stages=(dev asan tsan fuzz cuda lint image)
stages=(dev)

usage() {
  sed -n '2,24s/^# \{0,1\}//p' "$0"
}

known_stage() {
  local stage
  for stage in "${all_stages[@]}"; do
    [ "$stage" != "$1" ] || return 0
  done
  echo "unknown stage: $1, want one of: ${all_stages[*]}" >&2
  return 1
}

# Configures a preset and builds the given targets of it, or all.
build_preset() {
  local preset=$1
  shift
  cmake --preset "$preset"
  cmake --build "build/$preset" -j "$jobs" --target "${@:-all}"
}

# Test cases that ran in the last ctest of a build folder.
print_cases() {
  local log=build/$1/Testing/Temporary/LastTest.log
  grep -ohE '^\[  PASSED  \] [0-9]+' "$log" |
    awk '{ n += $4 } END { printf "%d test cases passed\n", n }'
}

# KF_EMULATED_BUILDS: which builds of the emulated CUDA tests, default all.
stage_dev() {
  cmake --preset dev -DKF_EMULATED_BUILDS="${KF_EMULATED_BUILDS:-plain;asan;check}"
  build_preset dev
  ctest --preset dev -j "$jobs"
  print_cases dev
}

stage_asan() {
  # In CI without the command-line tools, a quarter of this stage's time: what
  # reads files and requests from strangers is in the rest.
  local skip='^$' parts=(all)
  if [ "${CI:-}" = true ]; then
    skip='^(tools|sim|gpu|descend|quality)_'
    parts=(tests/{kernels,engine,golden,server,e2e,fuzz}/all)
  fi
  build_preset asan "${parts[@]}"
  ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
    UBSAN_OPTIONS=print_stacktrace=1 \
    ctest --preset asan -j "$jobs" -LE slow -E "$skip"
  print_cases asan
}

stage_tsan() {
  # The benchmarks only have to compile. In CI without what has no threads.
  local skip='^$' parts=(tests/{kernels,engine,bench}/all)
  if [ "${CI:-}" = true ]; then
    skip='^(dequant|gguf|gguf_hostile|model_config|tokenizer|sampler|logprobs|request_validation)_test$|^simd_'
    parts=(tests/{kernels,engine/model,engine/core,bench}/all)
  fi
  build_preset tsan "${parts[@]}"
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
    ctest --preset tsan -j "$jobs" -L 'engine|kernels' -LE slow -E "$skip"
  print_cases tsan
}

# clang with warnings as errors: -Wthread-safety is checked on the way.
stage_fuzz() {
  # In CI without the instruction sets above the baseline, half of this build.
  local target name scratch seconds=${KF_FUZZ_SECONDS:-20} simd=ON
  if [ "${CI:-}" = true ]; then simd=OFF; fi
  cmake --preset fuzz -DKF_WERROR=ON -DKF_SIMD=$simd
  cmake --build build/fuzz -j "$jobs" --target tests/fuzz/all
  scratch=$(mktemp -d)
  for target in build/fuzz/tests/fuzz/fuzz_*; do
    if [ ! -x "$target" ] || [ ! -f "$target" ]; then continue; fi
    name=$(basename "$target")
    mkdir -p "$scratch/$name"
    echo "$name: $seconds s"
    "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
      -print_final_stats=1 -verbosity=0 -artifact_prefix="$scratch/crash-" \
      "$scratch/$name" "tests/fuzz/corpus/${name#fuzz_}"
  done
  rm -rf "$scratch"
}

stage_cuda() {
  scripts/check_gpu.py
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    python3 tests/cuda/gates/check_gpu_test.py
  fi
}

stage_lint() {
  scripts/check.sh
}

stage_image() {
  scripts/image.sh
}

while [ $# -gt 0 ]; do
  case "$1" in
    --full) stages=("${all_stages[@]}") ;;
    --only)
      IFS=, read -r -a stages <<<"${2:?--only needs a stage}"
      for stage in "${stages[@]}"; do known_stage "$stage" || exit 2; done
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "unknown argument: $1" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

if [ "${stages[*]}" = dev ]; then
  kf_install_packages "${KF_TEST_PACKAGES[@]}"
else
  kf_install_packages "${KF_FULL_PACKAGES[@]}"
fi
echo "versions: $(g++ --version | head -n 1), $(cmake --version | head -n 1)," \
  "ninja $(ninja --version), $jobs cores"
KEYFORMER_TEST_MODEL=$(scripts/fetch_model.sh)
export KEYFORMER_TEST_MODEL

summary=()
failed=()
for stage in "${stages[@]}"; do
  echo "=== stage $stage"
  begin=$SECONDS
  # A subshell outside of any condition: set -e holds inside it.
  set +e
  (
    set -e
    "stage_$stage"
  )
  code=$?
  set -e
  outcome=passed
  if [ "$code" -ne 0 ]; then
    outcome=FAILED
    failed+=("$stage")
  fi
  summary+=("$(printf '%-6s %-7s %5d s' "$stage" "$outcome" \
    $((SECONDS - begin)))")
  echo "=== stage $stage $outcome in $((SECONDS - begin)) s"
done

echo "=== summary"
printf '%s\n' "${summary[@]}"
if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
