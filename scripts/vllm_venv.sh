#!/bin/sh
# Makes the environment $1 with vLLM and Tenstorrent's plugin, from the CPython that $2 prints. It is
# separate from .venv, because vLLM needs transformers 5. A later run skips the steps that are done. A folder of others
# stays (remove_venv.sh).
# PLUGIN: what pip installs as the plugin, such as a directory. Default: the pinned commit.
# TORCH_INDEX: the package index of torch for CPUs. With an empty value pip takes PyPI's torch, which brings 3 GB
# of CUDA libraries.
set -eu

venv=$1
find_python=$2
steps=$venv/steps
torch=2.13.0
vllm=0.25.1
plugin_commit=b95c0501e62f32abab619c77fd600a835c7f6cc3
torch_index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
if [ -n "${PLUGIN:-}" ]; then
    [ ! -e "$PLUGIN" ] || PLUGIN=$(cd "$PLUGIN" && pwd)
    plugin=$PLUGIN
elif [ -f "$steps/plugin" ] && ! grep -q '^git+' "$steps/plugin"; then
    plugin=$(cat "$steps/plugin")  # a directory that an earlier run was given
else
    plugin=git+https://github.com/tenstorrent/vllm-tt-plugin@$plugin_commit
fi

# step FILE VERSION WORDS: succeeds and prints WORDS if this step is still to do. `done_step` records that it is done.
step() {
    step_file=$steps/$1
    step_version=$2
    [ "$(cat "$step_file" 2>/dev/null || true)" != "$2" ] || return 1
    echo "== $venv: $3" >&2
}
done_step() {
    printf '%s\n' "$step_version" >"$step_file"
}
pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

if [ ! -d "$steps" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$(sh "$find_python")
    sh "$(dirname "$0")/remove_venv.sh" "$venv"
    "$python" -m venv "$venv"
    mkdir "$steps"
fi

tools='setuptools==80.9.0 setuptools-scm setuptools-rust wheel packaging ninja cmake jinja2'
if step tools "$tools" "1/5 what builds vLLM"; then
    pip install --quiet $tools
    done_step
fi
if step torch "$torch" "2/5 torch $torch and ttnn"; then
    # Without an answer, pip would try the index again for each of 35 packages.
    if [ -n "$torch_index" ] && ! pip index versions --retries 0 --timeout 15 --index-url "$torch_index" torch >/dev/null 2>&1; then
        echo "== $torch_index does not answer: torch comes from PyPI, with 3 GB of CUDA libraries" >&2
        torch_index=
    fi
    pip install ${torch_index:+--extra-index-url "$torch_index"} "torch==$torch" 'numpy<2'
    pip install ttnn==0.81.1 "torch==$torch" 'numpy<2'
    done_step
fi
# "empty" is the target for a plugin's platform. The override keeps "+empty" out of the version; pip would refuse it.
if step vllm "$vllm" "3/5 vLLM $vllm, built without kernels"; then
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$vllm \
        pip install --no-deps --no-build-isolation --no-binary vllm "vllm==$vllm"
    done_step
fi
# The versions are those of the lock file; its first lines have the command that makes it from requirements.txt.
lock=$(dirname "$0")/vllm_lock.txt
if step requirements "$vllm $torch $(cksum <"$lock")" "4/5 what vLLM requires"; then
    "$venv/bin/python" - "$torch" >"$steps/requirements.txt" <<'PYTHON'
import sys
from importlib.metadata import requires

for line in requires("vllm"):
    if "extra ==" not in line and not line.startswith(("opencv", "numpy", "torch")):
        print(line)
# ttnn needs numpy 1, and this is the last OpenCV for numpy 1. xgrammar 0.2.5 to 0.2.8 end the process at a pattern's
# repetition above 128 (mlc-ai/xgrammar issue 863).
print("opencv-python-headless==4.11.0.86", "numpy<2", f"torch=={sys.argv[1]}", "tblib", "xgrammar==0.2.3", sep="\n")
PYTHON
    pip install -r "$steps/requirements.txt" -c "$lock"
    done_step
fi
if step plugin "$plugin" "5/5 Tenstorrent's plugin from $plugin"; then
    pip install --force-reinstall --no-deps --no-build-isolation "$plugin"
    done_step
fi
