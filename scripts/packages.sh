# The packages that the project needs, in one place: sourced by the scripts, and
# run by the Dockerfile as `packages.sh LIST` (prints the list). Debian's, but
# for those of CUDA.
# Why each library is here: docs/dependencies.md.
# shellcheck shell=bash

# Compile and serve.
KF_BUILD_PACKAGES=(
  ca-certificates cmake g++ ninja-build pkg-config python3 python3-pip
  libabsl-dev libcivetweb-dev libcli11-dev libgrpc++-dev libpcre2-dev
  libprotobuf-dev libspdlog-dev libssl-dev libutf8proc-dev nlohmann-json3-dev
  prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc
)
# And test.
KF_TEST_PACKAGES=(
  "${KF_BUILD_PACKAGES[@]}" ccache git libgmock-dev libgtest-dev openssl
)
# And the stages of scripts/test.sh --full.
KF_FULL_PACKAGES=(
  "${KF_TEST_PACKAGES[@]}" aardvark-dns buildah clang clang-format clang-tidy
  debootstrap libclang-rt-dev libbenchmark-dev netavark podman runc shellcheck
  uidmap
)
# Measure quality (tests/quality), beside a built server.
KF_QUALITY_PACKAGES=(
  protobuf-compiler python3 python3-grpcio python3-protobuf
)
# Run a built server, as the image does: shared libraries alone.
KF_RUNTIME_PACKAGES=(
  libabsl20220623 libcivetweb1 libgrpc++1.51 libpcre2-8-0
  libprometheus-cpp-core1.0 libprotobuf32 libspdlog1.10 libssl3 libutf8proc2
)
# From PyPI, as requirements of pip: the versions that were tried together, each
# with the SHA-256 of its wheel for x86-64. nvcc with what it needs, for the cuda
# image alone; elsewhere the toolkit is brought along.
KF_NVCC_PACKAGES=(
  "nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"
  "nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"
  "nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"
  "nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"
  "nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"
)
# And the library of its products.
KF_CUBLAS_PACKAGES=(
  "nvidia-cublas==13.1.0.3 --hash=sha256:ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171"
)

# Prints those of the given packages that are not installed, one a line.
kf_missing_packages() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null |
      cut -c1-2)" != ii ]; then
      echo "$package"
    fi
  done
}

# Installs what is missing. Without root and with something missing: names it
# and ends with exit code 3. Needs no network when nothing is missing.
kf_install_packages() {
  local missing
  mapfile -t missing < <(kf_missing_packages "$@")
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    {
      echo "missing packages: ${missing[*]}"
      echo "install them as root: apt-get install ${missing[*]}"
    } >&2
    exit 3
  fi
  echo "installing: ${missing[*]}" >&2
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
    --no-install-recommends "${missing[@]}" >/dev/null
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case "${1:-}" in
    build) printf '%s\n' "${KF_BUILD_PACKAGES[@]}" ;;
    test) printf '%s\n' "${KF_TEST_PACKAGES[@]}" ;;
    full) printf '%s\n' "${KF_FULL_PACKAGES[@]}" ;;
    quality) printf '%s\n' "${KF_QUALITY_PACKAGES[@]}" ;;
    runtime) printf '%s\n' "${KF_RUNTIME_PACKAGES[@]}" ;;
    nvcc) printf '%s\n' "${KF_NVCC_PACKAGES[@]}" ;;
    cublas) printf '%s\n' "${KF_CUBLAS_PACKAGES[@]}" ;;
    *)
      echo "usage: $0 build|test|full|quality|runtime|nvcc|cublas" >&2
      exit 2
      ;;
  esac
fi
