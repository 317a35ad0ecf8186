#!/usr/bin/env bash
# Builds the container image without a Docker engine, runs it and calls it: what
# `docker build` and `docker run` do, on a machine that has neither a daemon nor
# a registry of images. Needs root and buildah, podman, runc, debootstrap.
#
#   scripts/image.sh [cpu|cuda]
#
# A target of the Dockerfile, default cpu. cuda takes as long again for nvcc,
# and some 1.3 GB from PyPI; it is called on the CPU, where it has to say that
# no GPU is there (so not on a machine with one).
#
# The base image is made with debootstrap from the package mirror that this
# machine uses, and cached in ${XDG_CACHE_HOME:-~/.cache}/keyformer; pip inside
# the build trusts this machine's CA bundle (PIP_CERT or the system's).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${1:-cpu}
case "$target" in
  cpu | cuda) ;;
  *)
    echo "image: \"$target\" is no target, want cpu or cuda" >&2
    exit 2
    ;;
esac
if [ "$(id -u)" -ne 0 ]; then
  echo "image: building an image here needs root" >&2
  exit 3
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/keyformer
base=$cache/debian-12-slim.tar
work=$(mktemp -d)
store=(--root "$work/store" --runroot "$work/run" --storage-driver "${KF_STORAGE_DRIVER:-overlay}")
container=

finish() {
  if [ -n "$container" ]; then
    podman_ logs "$container" 2>&1 | tail -n 20 || true
    podman_ rm -f -t 0 "$container" >/dev/null 2>&1 || true
  fi
  umount -l "$work/store/overlay" 2>/dev/null || true
  rm -rf --one-file-system "$work" || true
}
trap finish EXIT

podman_() { podman "${store[@]}" --cgroup-manager cgroupfs --runtime runc "$@"; }
buildah_() { buildah "${store[@]}" "$@"; }

# The Debian mirror of this machine's own apt sources.
mirror() {
  sed -n 's/^URIs: *//p; s/^deb *\(\[[^]]*\] *\)\{0,1\}\(http[^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
    /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep debian | grep -v security | head -n 1
}

make_base() {
  [ ! -f "$base" ] || return 0
  mkdir -p "$cache"
  debootstrap --variant=minbase --include=ca-certificates bookworm \
    "$work/rootfs" "$(mirror)" >"$work/debootstrap.log" 2>&1 || {
    tail -n 20 "$work/debootstrap.log" >&2
    return 1
  }
  # What a slim image leaves out.
  rm -rf "$work"/rootfs/usr/share/{doc,man,locale}/* \
    "$work"/rootfs/var/cache/apt/archives/*.deb
  tar -C "$work/rootfs" -cf "$base.part" .
  mv "$base.part" "$base"
  rm -rf --one-file-system "$work/rootfs"
}

import_base() {
  local from
  from=$(buildah_ from scratch)
  buildah_ add --quiet "$from" "$base" / >/dev/null
  buildah_ config --cmd /bin/bash "$from"
  buildah_ commit --quiet --rm "$from" localhost/debian:12-slim >/dev/null
}

build_image() {
  local bundle=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
  local tests=()
  if [ -n "${CI:-}" ] && [ "$target" = cpu ]; then
    # The stages before have run them all; what follows calls the image.
    tests=(--build-arg TESTS=OFF)
  fi
  buildah_ bud --format docker --isolation chroot --network host --pull-never \
    --volume "$bundle:/run/ci-ca.crt:ro" --build-arg PIP_CERT=/run/ci-ca.crt \
    --build-arg BASE=localhost/debian:12-slim "${tests[@]}" \
    --target "$target" -t localhost/keyformer:ci .
}

# A port that nothing listens on now.
free_port() {
  python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Runs the image on loopback ports of its own and calls it as a user would,
# with the client that is in the image.
call_image() {
  local grpc http user
  grpc=127.0.0.1:$(free_port)
  http=127.0.0.1:$(free_port)
  container=keyformer-ci
  podman_ run -d --name "$container" --network host --read-only \
    --no-healthcheck \
    --cap-drop all --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
    -e "KEYFORMER_GRPC_ADDRESS=$grpc" -e "KEYFORMER_HTTP_ADDRESS=$http" \
    localhost/keyformer:ci >/dev/null
  cat >"$work/keyformer" <<EOF
#!/usr/bin/env bash
exec podman $(printf '%q ' "${store[@]}") --cgroup-manager cgroupfs \
  --runtime runc exec -i $container keyformer "\$@"
EOF
  chmod +x "$work/keyformer"
  KEYFORMER=$work/keyformer deploy/smoke.sh "$grpc" "$http"
  podman_ exec "$container" keyformer-healthcheck
  if [ "$target" = cuda ]; then
    podman_ logs "$container" 2>&1 |
      grep 'device auto: the CPU, for no usable CUDA driver' || {
      echo "image: did not say that there is no GPU" >&2
      return 1
    }
  fi
  user=$(podman_ exec "$container" id -u)
  [ "$user" = 10001 ] || {
    echo "image: runs as user $user, want 10001" >&2
    return 1
  }
  # SIGTERM drains and ends with 0.
  podman_ stop -t 40 "$container" >/dev/null
  [ "$(podman_ inspect --format '{{.State.ExitCode}}' "$container")" = 0 ] || {
    echo "image: did not exit with 0 on SIGTERM" >&2
    return 1
  }
}

timed() {
  local begin=$SECONDS
  "$@"
  echo "image: $1 took $((SECONDS - begin)) s"
}

timed make_base
timed import_base
timed build_image
timed call_image
podman_ images --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep keyformer
