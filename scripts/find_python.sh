#!/bin/sh
# Prints the path of a CPython that ttnn has a wheel for: $CPYTHON if it is set, else the first found
# on PATH, then under pyenv, uv and /opt.
set -u

suits() {
    "$1" -c 'import sys, platform
sys.exit(not (sys.version_info[:2] in ((3, 10), (3, 12)) and platform.python_implementation() == "CPython"
              and sys.platform == "linux" and platform.machine() == "x86_64"))' 2>/dev/null
}

if [ -n "${CPYTHON:-}" ]; then
    suits "$CPYTHON" && command -v "$CPYTHON" && exit 0
    echo "CPYTHON=$CPYTHON is not a CPython 3.10 or 3.12 on Linux x86-64; ttnn has wheels for no other." >&2
    exit 2
fi
for candidate in python3.12 python3.10 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10*/bin/python3 \
    "$HOME"/.local/share/uv/python/cpython-3.12*/bin/python3 "$HOME"/.local/share/uv/python/cpython-3.10*/bin/python3 \
    /opt/python3.12/bin/python3 /opt/python3.10/bin/python3; do
    if suits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done
echo "No CPython 3.10 or 3.12 on Linux x86-64 was found (on PATH, under pyenv or uv): install one, or name one with CPYTHON=/path/to/python; ttnn has wheels for no other." >&2
exit 2
