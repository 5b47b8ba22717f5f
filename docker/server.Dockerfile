# syntax=docker/dockerfile:1
# `vlm serve` in a container. From the repository's root:
#   docker build -f docker/server.Dockerfile -t vlm .
#   docker run --gpus all -p 8000:8000 -p 8001:8001 -v vlm-cache:/cache vlm mini-llava --grpc-port 8001
# What follows the image's name are arguments of `vlm serve`.
FROM python:3.12-slim

# a C compiler for the launchers of Triton's kernels; tini ends the server on SIGTERM while models load, too
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY vlm vlm
COPY visual_engines visual_engines
COPY llm_engines llm_engines
COPY app app
RUN pip install --no-cache-dir '.[serve,grpc,triton,sentencepiece]' && rm -rf /src/*

# models, engines and compiled kernels are kept on a volume
ENV HOME=/cache HF_HOME=/cache/huggingface PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --no-create-home --home-dir /cache vlm && install --directory --owner vlm /cache
USER vlm
VOLUME /cache
WORKDIR /cache

EXPOSE 8000 8001
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["tini", "--", "vlm", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["mini-llava"]
