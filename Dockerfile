# The Keyformer server with its default model.
#
#   docker build -t keyformer .
#   docker run --stop-timeout 40 -p 8001:8001 -p 8002:8002 keyformer
#
# (Stopping drains for up to 30 s, KEYFORMER_DRAIN_TIMEOUT; Docker by itself
# waits for 10.)
#
# Another model: mount it and set KEYFORMER_MODEL. Every flag of the server is
# also an environment variable, KEYFORMER_<FLAG>.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
COPY scripts/packages.sh scripts/fetch_model.sh scripts/
COPY deploy/profiles deploy/profiles
RUN apt-get update \
 && scripts/packages.sh test \
  | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
 && rm -rf /var/lib/apt/lists/*
# A CA bundle for pip, where the network needs one of its own.
ARG PIP_CERT
RUN scripts/fetch_model.sh /models/SmolLM2-135M-Instruct.Q4_1.gguf
COPY . .
# All tests are built and run; these two choose fewer, where others have just
# passed outside.
ARG TEST_TARGETS=all
ARG TEST_LABELS=
RUN cmake --preset release -DKF_BUILD_TESTS=ON \
 && xargs cmake --build build/release --target keyformer-server keyformer <<<"${TEST_TARGETS}" \
 && KEYFORMER_TEST_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf \
    ctest --test-dir build/release ${TEST_LABELS:+-L "${TEST_LABELS}"} -j "$(nproc)" --output-on-failure --no-tests=error \
 && strip build/release/bin/keyformer-server build/release/bin/keyformer

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY scripts/packages.sh /tmp/packages.sh
RUN apt-get update \
 && bash /tmp/packages.sh runtime \
  | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
 && rm -rf /var/lib/apt/lists/* /tmp/packages.sh
COPY --from=build /models /models
COPY --from=build /src/build/release/bin/keyformer-server /src/build/release/bin/keyformer /usr/local/bin/
COPY deploy/healthcheck.sh /usr/local/bin/keyformer-healthcheck
# Every library is there, or the build ends here.
RUN keyformer-server --version && keyformer --help >/dev/null
COPY LICENSE /usr/share/doc/keyformer/LICENSE
ENV KEYFORMER_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf \
    KEYFORMER_GRPC_ADDRESS=0.0.0.0:8001 \
    KEYFORMER_HTTP_ADDRESS=0.0.0.0:8002
USER 10001
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["keyformer-healthcheck"]
ENTRYPOINT ["keyformer-server"]
