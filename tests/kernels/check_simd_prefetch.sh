#!/usr/bin/env bash
# check_simd_prefetch.sh OBJDUMP objects...: attention, and products on tiles,
# fetch ahead at every level that has a way to name it. A compiler may drop prefetches whose function
# it takes for one without effect, and no result shows it.
set -euo pipefail

objdump=$1
shift
declare -A found
for object in "$@"; do
  level=$(sed -nE 's,.*/kf_(tile_)?simd_([a-z0-9_]+)\.dir/.*,\2,p' <<< "$object")
  case $level in '' | scalar) continue ;; esac
  count=$("$objdump" -d --no-show-raw-insn "$object" | grep -c 'prefetcht1' || true)
  found[$level]=$((${found[$level]:-0} + count))
done
for level in "${!found[@]}"; do
  echo "$level: ${found[$level]} prefetches to the second level of cache"
  # Logits, softmax and values each fetch; on tiles products of few and of many
  # rows.
  [ "${found[$level]}" -ge 3 ] || { echo "$level: too few"; exit 1; }
done
