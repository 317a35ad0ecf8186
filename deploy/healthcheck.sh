#!/usr/bin/env bash
# The image's HEALTHCHECK: exit code 0 while the server that KEYFORMER_* set up
# answers /readyz with 200. Without HTTP there is nothing to ask, and the
# process alone counts.
set -euo pipefail

address=${KEYFORMER_HTTP_ADDRESS-127.0.0.1:8002}
if [ -z "$address" ]; then
  echo "no HTTP to ask"
  exit 0
fi
# Of every interface, 0.0.0.0 and [::], the system takes its own.
host=${address%:*}
host=${host#[}
host=${host%]}
exec 3<>"/dev/tcp/$host/${address##*:}"
printf 'GET /readyz HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' \
  "$address" >&3
IFS= read -r status <&3
echo "$status"
[[ $status == *" 200 "* ]]
