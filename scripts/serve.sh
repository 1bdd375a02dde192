#!/bin/sh
# An OpenAI-compatible server: sh scripts/serve.sh VENV MODEL [options of vllm serve]. MESH_DEVICE: N150, N300 or T3K.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
venv=$1
model=$2
shift 2
export MESH_DEVICE="${MESH_DEVICE:-N300}"
export EXTRA_MODELS_DIR="$here/models/demos/qwen25_7b/serving/extra_models"
# Options that come later win, so "$@" may say otherwise.
set -- "$venv/bin/vllm" serve "$model" --block-size 64 --max-num-seqs 32 --max-model-len 2048 \
    --additional-config '{"tt": {"sample_on_device_mode": "all", "l1_small_size": 16384}}' "$@"
if [ -z "${TT_METAL_SIMULATOR:-}" ] && ! ls /dev/tenstorrent/* >/dev/null 2>&1; then
    echo "no Tenstorrent device: on the golden mesh, whose times say nothing about hardware" >&2
    set -- "$venv/bin/python" "$here/models/common/golden_mesh" --system "$MESH_DEVICE" "$@"
fi
exec "$@"
