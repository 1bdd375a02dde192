#!/bin/sh
# Starts the server. Arguments are options of vllm serve. MODEL and MESH_DEVICE replace the bundle's own. With
# TT_MODEL_PRINT=1 it prints the command instead, as `tt-model serve ID --print` asks. Without --port it listens where
# `tt-model curl` asks.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export MESH_DEVICE="${MESH_DEVICE:-@MESH@}"
# Where `tt-model pull --with-weights` puts them, by its version: a folder, or a cache of the hub.
model=@MODEL@
if [ -z "${MODEL:-}" ] && [ -e "$here/weights/config.json" ]; then
    model=$here/weights
    set -- --served-model-name @NAME@ @MODEL@ "$@"
elif [ -d "$here/.hf" ]; then
    export HF_HOME="${HF_HOME:-$here/.hf}"
fi
set -- --port @PORT@ @LENGTHS@ "$@"
set -- "${VENV:-$here/venv}/bin/python" "$here/scripts/serve.py" "${MODEL:-$model}" "$@"
if [ "${TT_MODEL_PRINT:-}" = 1 ]; then
    for word in env "MESH_DEVICE=$MESH_DEVICE" ${HF_HOME:+"HF_HOME=$HF_HOME"} "$@"; do
        printf "'%s' " "$(printf %s "$word" | sed "s/'/'\\\\''/g")"
    done
    echo
    exit 0
fi
exec "$@"
