#!/usr/bin/env bash
# Builds what tests/gpu/run.sh runs, on a machine with nvcc that needs no GPU:
# every test of a device and the benchmark, statically linked and stripped, in
# FOLDER (default: build/gpu-programs). Needs the packages of scripts/test.sh.
#
#   tests/gpu/build.sh [FOLDER]
#
# KF_GPU_ARCHS (default: 80-real;90-real) and KF_GPU_JOBS (default: all cores)
# may be set. Exit code 1 if the folder comes to more than 64 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:-build/gpu-programs}
limit_bytes=$((64 * 1000 * 1000))
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "build.sh: there is no nvcc on the PATH or in /usr/local/cuda" >&2
  exit 1
fi
cmake --preset gpu -DCMAKE_CUDA_ARCHITECTURES="${KF_GPU_ARCHS:-80-real;90-real}"
cmake --build build/gpu -j "${KF_GPU_JOBS:-$(nproc)}" --target gpu_programs

mkdir -p "$folder"
find "$folder" -maxdepth 1 -type f \( -name '*_gpu' -o -name gpu_bench \) -delete
bytes=0
for program in build/gpu/gpu/*; do
  target=$folder/$(basename "$program")
  strip -o "$target" "$program"
  # libc, what belongs to it, and nothing else: the rest may not be there.
  if ldd "$target" | grep -vE \
    'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread)\.so'; then
    echo "build.sh: $target needs the libraries above" >&2
    exit 1
  fi
  size=$(stat -c %s "$target")
  bytes=$((bytes + size))
  printf '%-32s %6d KB\n' "$(basename "$target")" $((size / 1000))
done
printf '%-32s %6d KB, limit %d\n' "$folder" $((bytes / 1000)) \
  $((limit_bytes / 1000))
[ "$bytes" -le "$limit_bytes" ]
