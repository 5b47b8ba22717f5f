# syntax=docker/dockerfile:1
# NVIDIA's Triton Inference Server with what the models of `vlm export-triton` need in its Python. From the repository's root:
#   docker build -f docker/triton.Dockerfile --build-arg TRITON_IMAGE=… -t vlm-triton .
#   vlm export-triton mini-llava --out repository
#   docker run --gpus all --shm-size 1g -p 8000:8000 -p 8001:8001 -v ./repository:/models:ro vlm-triton
# TRITON_IMAGE: NVIDIA's image of Triton with the Python backend, its tag ending in -py3 (Python 3.11 or later in it).
ARG TRITON_IMAGE
FROM ${TRITON_IMAGE}

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY vlm vlm
COPY visual_engines visual_engines
COPY llm_engines llm_engines
COPY app app
# Triton's Python backend dies on BYTES tensors of NumPy 2; the image's own packages may be Debian's
RUN pip install --no-cache-dir --break-system-packages '.[triton,sentencepiece]' 'numpy>=1.26,<2' && rm -rf /src/*

WORKDIR /models
EXPOSE 8000 8001 8002
CMD ["tritonserver", "--model-repository", "/models"]
