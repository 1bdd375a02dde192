#!/bin/sh
# Makes the environment $1 with vLLM and Tenstorrent's plugin; $2: the CPython to make it from. Apart from the tests' one: vLLM
# wants transformers 5. PLUGIN: what pip is to install as the plugin, such as a directory; by default the commit that we run.
set -eu

venv=$1
python=$2
# The version that the plugin is made for. By its address: to pip, which has asked for 0.25.1, "0.25.1+empty" is another.
vllm=https://files.pythonhosted.org/packages/bf/ce/542315fe84e23a73b919d64794350233d4f1c70b2544ba0afd5348005aff/vllm-0.25.1.tar.gz
plugin=${PLUGIN:-git+https://github.com/tenstorrent/vllm-tt-plugin@b95c050}

rm -rf "$venv"
"$python" -m venv "$venv"
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip setuptools==80.9.0 setuptools-scm setuptools-rust wheel packaging ninja cmake jinja2
$pip ttnn==0.81.1 torch==2.13.0 'numpy<2'
# "empty": for a platform that a plugin brings. Its requirements are read from what was built; ttnn's numpy decides OpenCV's.
VLLM_TARGET_DEVICE=empty $pip --no-deps --no-build-isolation "$vllm"
"$venv/bin/python" - >"$venv/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

for line in requires("vllm"):
    if "extra ==" not in line and not line.startswith(("opencv", "numpy", "torch")):
        print(line)
print("opencv-python-headless==4.11.0.86", "numpy<2", "torch==2.13.0", "tblib", sep="\n")
PYTHON
$pip -r "$venv/requirements.txt"
$pip --no-deps --no-build-isolation "$plugin"
