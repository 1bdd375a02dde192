#!/bin/sh
# Makes the environment $1, with pip, for uv to fill, unless it exists. Removes nothing.
set -eu

venv=$1
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$venv" ]; then
    if ! CPYTHON="$venv/bin/python" sh "$here/find_python.sh" >/dev/null 2>&1; then
        echo "$venv exists and is not an environment of CPython 3.10 or 3.12: rename it, or remove it (make clean), and call make again." >&2
        exit 2
    fi
else
    python=$(sh "$here/find_python.sh")
    echo "making $venv with $python; uv installs torch and ttnn next: some 6 GB on disk, and a minute or more"
    "$python" -m venv --without-pip "$venv"
fi
# Ubuntu's Python has no ensurepip without python3-venv.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 && ! "$venv/bin/python" -m ensurepip --default-pip >/dev/null 2>&1; then
    echo "$venv has no pip, and its Python cannot install it: apt install python3-venv, or name another Python with CPYTHON=/path/to/python, then rename or remove $venv." >&2
    exit 2
fi
