# syntax=docker/dockerfile:1
# One image for the code server, the webserver, the daemon, run workers and the `embeddings` command; see
# docs/deployment.md. It is for CPUs unless DEVICE=cuda: torch's wheels bring the CUDA libraries, the host the driver.
ARG PYTHON=3.11

# What changes seldom, in layers of its own: torch, then all other dependencies.
FROM python:${PYTHON}-slim-bookworm AS dependencies
ENV PATH=/opt/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/venv
COPY constraints.txt ./
ARG DEVICE=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN case "$DEVICE" in \
      cpu) pip install -c constraints.txt --extra-index-url "$TORCH_INDEX" torch ;; \
      cuda) pip install -c constraints.txt torch ;; \
      *) echo "DEVICE is '$DEVICE'; use cpu or cuda" >&2; exit 2 ;; \
    esac
ARG EXTRAS=ui,postgres,demo
COPY pyproject.toml README.md LICENSE ./
# An empty package stands for ours, so that this layer stays when only code changes.
RUN mkdir embeddings_pipeline && touch embeddings_pipeline/__init__.py \
    && pip install -c constraints.txt ".[$EXTRAS]" \
    && pip uninstall --yes embeddings-pipeline

FROM dependencies AS wheel
COPY embeddings_pipeline ./embeddings_pipeline
RUN pip wheel --no-deps --wheel-dir /dist .

FROM python:${PYTHON}-slim-bookworm
# tini is process 1: it hands SIGTERM on to the whole group and reaps what is left. Debian has one version a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin embeddings \
    && install --directory --owner=10001 /opt/dagster /opt/models /opt/corpora /data
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DAGSTER_HOME=/opt/dagster \
    EMBEDDINGS_MODEL_CACHE=in_process \
    EMBEDDINGS_MODEL_STORE=/opt/models \
    EMBEDDINGS_CORPORA=/opt/corpora \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=wheel /dist /opt/wheel
RUN pip install --no-deps /opt/wheel/*.whl
COPY --chown=10001 dagster.yaml /opt/dagster/dagster.yaml
USER 10001
WORKDIR /data
# Models to bake, by name, with blanks between; none: mount them at /opt/models, or name their folders in corpora.
ARG MODELS=""
RUN for name in $MODELS; do embeddings download-model --model "$name" || exit 1; done
EXPOSE 4000
# Of the code server. Other commands want one of their own, or --no-healthcheck.
HEALTHCHECK --interval=60s --timeout=30s --start-period=120s --retries=3 \
    CMD ["dagster", "api", "grpc-health-check", "-p", "4000"]
ENTRYPOINT ["tini", "-g", "--"]
CMD ["dagster", "code-server", "start", "-h", "0.0.0.0", "-p", "4000", "-m", "embeddings_pipeline.definitions"]
