# The images of AAA: `worker` runs agents' tools, `operator` looks after AgentRuns in a cluster.
#
#   docker build --target worker -t aaa-worker:0.1.0 .
#   docker build --target operator -t aaa-operator:0.1.0 .
#
# BASE may be any Debian with Python 3.11 or newer and its venv module. The package index is the one
# that pip is told of: PIP_INDEX_URL as a build argument, or a pip.conf as the secret `pip.conf` where
# its address must not stand in the builder's history. buildah builds the same file.
ARG BASE=python:3.13-slim

# ------------------------------------------------------------- tools and sources, in no final image
FROM ${BASE} AS tools
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /src
# The environments that are shipped have no pip: that of the builder fills them.
RUN python3 -m venv /build \
 && python3 -m venv --without-pip /opt/aaa
COPY requirements/build.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /build/bin/pip install --require-hashes -r requirements/build.txt

FROM tools AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY runtime runtime
COPY operator operator
RUN /build/bin/pip wheel --no-deps --no-build-isolation --no-index -w /wheels .

# Dependencies first: a change of the sources leaves that layer alone.
FROM tools AS worker-environment
COPY requirements/worker.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /build/bin/pip --python /opt/aaa/bin/python install --only-binary :all: --require-hashes -r requirements/worker.txt
COPY --from=wheel /wheels /wheels
RUN /build/bin/pip --python /opt/aaa/bin/python install --no-deps --no-index /wheels/*.whl

FROM tools AS operator-environment
COPY requirements/operator.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /build/bin/pip --python /opt/aaa/bin/python install --only-binary :all: --require-hashes -r requirements/operator.txt
COPY --from=wheel /wheels /wheels
RUN /build/bin/pip --python /opt/aaa/bin/python install --no-deps --no-index /wheels/*.whl

# ---------------------------------------------------------------------------- what both images share
FROM ${BASE} AS image
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
# The root file system is read-only in a pod: nothing writes byte code, and /tmp is the only home.
ENV PATH=/opt/aaa/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.vendor="AAA" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
# Agents of an image made upon this one lie here: `aaa worker` looks for its app in this folder first.
WORKDIR /app
# A number, not a name: the kubelet then sees that it is not root.
USER 10001:10001

FROM image AS operator
LABEL org.opencontainers.image.title="aaa-operator" \
      org.opencontainers.image.description="Keeps AgentRuns, their worker pools and their tool policies as they are declared"
COPY --from=operator-environment /opt/aaa /opt/aaa
ENTRYPOINT ["python", "-m", "aaa_operator.main"]

# Last, so that it is also what a build without --target makes.
FROM image AS worker
LABEL org.opencontainers.image.title="aaa-worker" \
      org.opencontainers.image.description="Runs the tools of AAA's agents: durable, leased, fenced calls"
COPY --from=worker-environment /opt/aaa /opt/aaa
ENTRYPOINT ["aaa"]
CMD ["worker"]
