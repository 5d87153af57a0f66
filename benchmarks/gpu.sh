#!/bin/sh
# Checks and times the attention paths on a CUDA device, in one call of at most 8 minutes: sh benchmarks/gpu.sh [FILE.json]
# It prints JSON. Without a CUDA device it says so and ends with 0. PYTHON=... names another interpreter than .venv's.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
HF_HUB_OFFLINE=1 exec timeout --kill-after=10 480 "$python" -m benchmarks.gpu "$@"
