#!/usr/bin/env bash
# One request and one scrape of a running server, both checked: is what was
# deployed really serving?
#
#   deploy/smoke.sh [GRPC_HOST:PORT [HTTP_HOST:PORT]]
#
# Default 127.0.0.1:8001 127.0.0.1:8002. Needs `keyformer` on the PATH, or its
# path in KEYFORMER; waits up to 120 s for the model to load.
set -euo pipefail

grpc=${1:-127.0.0.1:8001}
http=${2:-127.0.0.1:8002}
client=${KEYFORMER:-keyformer}

# The body of an HTTP GET; fails unless the status is 200. bash alone, so that
# it runs where there is no curl.
http_get() {
  local status line
  exec 3<>"/dev/tcp/${http%:*}/${http##*:}"
  printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' \
    "$1" "$http" >&3
  IFS= read -r status <&3
  while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do :; done
  cat <&3
  exec 3>&-
  [[ $status == *" 200 "* ]] || {
    echo "smoke: $http$1 answered $status" >&2
    return 1
  }
}

# generation_tokens_total now.
tokens_counted() {
  local name=keyformer_generation_tokens_total
  http_get /metrics | awk -v name="$name" '$1 == name { print int($2) }'
}

fail() {
  echo "smoke: $*" >&2
  exit 1
}

"$client" health --server "$grpc" --wait 120 \
  --service keyformer.v1.GenerationService >/dev/null ||
  fail "$grpc is not ready"
before=$(tokens_counted)
[ -n "$before" ] || fail "/metrics does not count generated tokens"
answer=$("$client" generate "The capital of France is" --server "$grpc" \
  --max_new_tokens 8 --ignore_eos --quiet)
[ -n "$answer" ] || fail "the answer is empty"
after=$(tokens_counted)
[ "$((after - before))" -ge 8 ] ||
  fail "8 tokens came and the counter went from $before to $after"
http_get /readyz >/dev/null
echo "smoke: ok: \"$answer\""
