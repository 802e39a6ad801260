# CPU image. Build: docker build -t facecrawl .
# Models are not in the image: they are fetched into the volume /models at the first start.

FROM rust:1.95-bookworm AS chef
RUN cargo install cargo-chef --locked --version ^0.1
WORKDIR /src

FROM chef AS plan
COPY . .
RUN cargo chef prepare --recipe-path recipe.json

FROM chef AS build
COPY --from=plan /src/recipe.json recipe.json
RUN cargo chef cook --release --package facecrawl --recipe-path recipe.json
COPY . .
RUN cargo build --release --locked --package facecrawl && strip target/release/facecrawl

# ONNX Runtime's shared library from its wheel; nothing of Python reaches the final image.
FROM python:3.12-slim-bookworm AS runtime
COPY scripts/runtime-wheels.txt /tmp/runtime-wheels.txt
RUN sed -n '/^onnxruntime==/,/[^\\]$/p' /tmp/runtime-wheels.txt >/tmp/onnxruntime.txt \
    && python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --dest /tmp/wheels -r /tmp/onnxruntime.txt \
    && python3 -m zipfile -e /tmp/wheels/onnxruntime-*.whl /tmp/wheel \
    && mkdir -p /opt/onnxruntime \
    && cp /tmp/wheel/onnxruntime/capi/libonnxruntime.so.* /tmp/wheel/onnxruntime/LICENSE /tmp/wheel/onnxruntime/ThirdPartyNotices.txt /opt/onnxruntime/ \
    && ln -s "$(basename /opt/onnxruntime/libonnxruntime.so.*)" /opt/onnxruntime/libonnxruntime.so

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/facecrawl facecrawl \
    && mkdir -p /models /data && chown facecrawl:facecrawl /models /data
COPY --from=runtime /opt/onnxruntime /opt/onnxruntime
COPY --from=build /src/target/release/facecrawl /usr/local/bin/facecrawl
ENV ORT_DYLIB_PATH=/opt/onnxruntime/libonnxruntime.so \
    MODELS_DIR=/models \
    DATA_DIR=/data \
    HOST=0.0.0.0
USER facecrawl
WORKDIR /var/lib/facecrawl
VOLUME ["/models", "/data"]
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["facecrawl", "health"]
ENTRYPOINT ["facecrawl"]
CMD ["serve"]
