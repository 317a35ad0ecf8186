#!/usr/bin/env bash
# Lint: include direction and file sizes, metric names, shell, Python, format,
# clang-tidy. Exit code 1 if anything is found.
#
#   scripts/check.sh            every file
#   CI=true scripts/check.sh    clang-tidy only on what changed since
#                               KF_LINT_BASE (default: the commit before), at
#                               most KF_TIDY_FILES (12) files
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

faults=0
check() {
  local name=$1 code=0
  shift
  "$@" || code=$?
  if [ "$code" -ne 0 ]; then
    echo "lint: $name failed"
    faults=$((faults + 1))
  fi
}

check_format() {
  git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run -Werror
}

check_shell() {
  git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck -x
}

check_python() {
  git ls-files -z '*.py' |
    xargs -0 -r python3 -W error -c 'import ast, pathlib, sys
for name in sys.argv[1:]:
    ast.parse(pathlib.Path(name).read_text(encoding="utf-8"), name)'
}

# The sources that clang-tidy reads, one a line: a changed header stands for the
# source beside it.
tidy_files() {
  if [ "${CI:-}" != true ]; then
    git ls-files '*.cc'
    return
  fi
  local base=${KF_LINT_BASE:-HEAD~1} name
  git rev-parse -q --verify "$base^{commit}" >/dev/null || base=HEAD
  git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h' |
    while read -r name; do
      [ ! -f "${name%.*}.cc" ] || echo "${name%.*}.cc"
    done | sort -u
}

check_tidy() {
  local files chosen limit=${KF_TIDY_FILES:-12}
  local commands=build/clang/compile_commands.json
  # Each by itself: `set -e` counts for nothing under check's `||`.
  command -v clang-tidy >/dev/null || {
    echo "clang-tidy: not installed"
    return 1
  }
  cmake --preset clang >/dev/null || return 1
  ninja -C build/clang proto/keyformer/v1/generation.pb.h >/dev/null || return 1
  [ -s "$commands" ] || {
    echo "clang-tidy: $commands is missing"
    return 1
  }
  # Files that this configuration does not compile have no command to read.
  mapfile -t files < <(tidy_files | while read -r name; do
    if grep -qF "/$name\"" "$commands"; then
      echo "$name"
    fi
  done)
  chosen=("${files[@]}")
  if [ "${CI:-}" = true ]; then chosen=("${files[@]:0:$limit}"); fi
  echo "clang-tidy: ${#chosen[@]} of ${#files[@]} files"
  if [ "${#chosen[@]}" -lt "${#files[@]}" ]; then
    echo "clang-tidy: NOT READ, beyond KF_TIDY_FILES=$limit:" \
      "${files[*]:$limit}"
  fi
  if [ "${#chosen[@]}" -eq 0 ]; then
    # A change may touch no source; a whole tree has some.
    [ "${CI:-}" = true ] || return 1
    return 0
  fi
  printf '%s\0' "${chosen[@]}" |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/clang --quiet 2>/dev/null ||
    return 1
}

check layers python3 scripts/check_layers.py
check metrics python3 scripts/check_metrics.py
check shell check_shell
check python check_python
check format check_format
check tidy check_tidy
echo "lint: $faults checks failed"
[ "$faults" -eq 0 ]
