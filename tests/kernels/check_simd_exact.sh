#!/usr/bin/env bash
# check_simd_exact.sh OBJDUMP objects...: the SIMD objects hold no instruction
# whose result differs between makers of CPUs, as approximate reciprocals do: a
# level's bits must not depend on the machine (docs/architecture.md,
# Determinism).
set -euo pipefail

objdump=$1
shift
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
for object in "$@"; do
  code=$("$objdump" -d --no-show-raw-insn "$object")
  grep -q '>:$' <<< "$code" || { echo "$object: no code"; exit 1; }
  if grep -Em3 '\sv?(rcp|rsqrt)[0-9]*[ps][sd]\b' <<< "$code"; then
    echo "$object: instructions whose results are not exact"
    exit 1
  fi
  # Fma() never means these: the compiler has fused what it was told not to.
  if grep -Em3 '\svfm(addsub|subadd)' <<< "$code"; then
    echo "$object: a fused multiply-add that the source does not have"
    exit 1
  fi
done
