#!/bin/sh
# Makes the environment with ttnn, vLLM and Tenstorrent's plugin, ./venv or the directory that is named. A second call
# goes on where the first one stopped.
set -eu
cd "$(dirname "$0")"
exec sh scripts/vllm_venv.sh "${1:-${VENV:-venv}}" scripts/find_python.sh
