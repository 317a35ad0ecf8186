#!/bin/sh
# Fails if a per-level object defines a symbol outside its level's namespace that
# the linker could use in place of baseline code's (kernels/cpu/simd_level.h).
# Usage: check_simd_odr.sh NM OBJECT...
set -eu
nm=$1
shift
checked=0
bad=0
for object in "$@"; do
  # Weak (V, W, u) and strong definitions, mangled: a level's namespace is
  # N2kf3cpu + its length and name.
  for symbol in $("$nm" --defined-only --extern-only "$object" |
    awk 'NF == 3 { print $3 }'); do
    checked=$((checked + 1))
    case $symbol in
      *2kf3cpu6scalar* | *2kf3cpu4avx2* | *2kf3cpu6avx512* | \
        *2kf3cpu11avx512_bf16* | *2kf3cpu11avx512_vnni* | \
        *2kf3cpu8amx_bf16*) ;;
      *)
        echo "$object: $symbol"
        bad=1
        ;;
    esac
  done
done
echo "$checked symbols checked"
[ "$checked" -gt 0 ] && [ "$bad" -eq 0 ]
