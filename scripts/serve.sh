#!/usr/bin/env bash
# Builds the server and serves a model on 127.0.0.1:8001 (gRPC) and :8002
# (HTTP: /metrics, /healthz, /readyz).
#
#   scripts/serve.sh                      the default model, fetched once
#   scripts/serve.sh --model FILE.gguf    a model of yours; no network once built
#   scripts/serve.sh --max_batch 8 ...    further flags go to keyformer-server
#                                         (its --help lists them)
#
# Installs missing Debian packages (as root; otherwise it names them and exits
# with 3). Puts `keyformer` and `keyformer-bench` within reach.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"

case "${1:-}" in
  -h | --help)
    sed -n '2,11s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

# The model that the flags or the environment name; empty: none.
named_model() {
  local previous='' flag
  for flag in "$@"; do
    case "$flag" in
      --model=* | -model=*)
        echo "${flag#*=}"
        return
        ;;
    esac
    if [ "$previous" = --model ] || [ "$previous" = -model ]; then
      echo "$flag"
      return
    fi
    previous=$flag
  done
  echo "${KEYFORMER_MODEL:-}"
}

# Links the tools into /usr/local/bin, or ~/.local/bin without the right to,
# and says where; a file there that is not a link stays as it is.
link_tools() {
  local folder=/usr/local/bin tool target
  if [ ! -w "$folder" ]; then
    folder=$HOME/.local/bin
    mkdir -p "$folder"
  fi
  for tool in keyformer keyformer-bench; do
    target=$root/build/release/bin/$tool
    if [ -e "$folder/$tool" ] && [ ! -L "$folder/$tool" ]; then
      echo "$folder/$tool is not a link of ours: left alone" >&2
    elif [ "$(readlink "$folder/$tool" || true)" != "$target" ]; then
      ln -sfn "$target" "$folder/$tool"
      echo "linked $folder/$tool" >&2
    fi
  done
  case ":$PATH:" in
    *":$folder:"*) ;;
    *) echo "add $folder to your PATH to call keyformer" >&2 ;;
  esac
}

model=$(named_model "$@")
if [ -n "$model" ] && [ ! -r "$model" ]; then
  echo "model: cannot read $model" >&2
  exit 2
fi
kf_install_packages "${KF_BUILD_PACKAGES[@]}"
if [ ! -f "$root/build/release/build.ninja" ]; then
  (cd "$root" && cmake --preset release) >&2
fi
cmake --build "$root/build/release" \
  --target keyformer-server keyformer keyformer-bench >&2
link_tools
if [ -z "$model" ]; then
  model=$("$root/scripts/fetch_model.sh")
  set -- --model "$model" "$@"
fi
echo "serving $model; in another shell: keyformer generate \"Hello\"" >&2
exec "$root/build/release/bin/keyformer-server" "$@"
