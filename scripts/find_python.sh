#!/bin/sh
# Prints the path of a CPython that ttnn has a wheel for: $CPYTHON if it is set, else the first found
# on PATH, then under pyenv, uv and /opt. With an argument, 3.10 or 3.12: one of this version, whatever $CPYTHON is.
set -u
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"  # cron and containers may set none, and pyenv's python3 needs it
export HOME

suits() {
    "$1" -c 'import sys, platform
sys.exit(not (f"{sys.version_info[0]}.{sys.version_info[1]}" in sys.argv[1] and platform.python_implementation() == "CPython"
              and sys.platform == "linux" and platform.machine() == "x86_64"))' "${2:-3.10 3.12}" 2>/dev/null
}

if [ -n "${CPYTHON:-}" ] && [ -z "${1:-}" ]; then
    suits "$CPYTHON" && command -v "$CPYTHON" && exit 0
    echo "CPYTHON=$CPYTHON is not a CPython 3.10 or 3.12 on Linux x86-64; ttnn has wheels for no other." >&2
    exit 2
fi
pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
uv=$HOME/.local/share/uv/python
for candidate in python3.12 python3.10 python3 python "$pyenv"/3.12*/bin/python3 "$pyenv"/3.10*/bin/python3 \
    "$uv"/cpython-3.12*/bin/python3 "$uv"/cpython-3.10*/bin/python3 \
    /opt/python3.12/bin/python3 /opt/python3.10/bin/python3; do
    if suits "$candidate" "${1:-}"; then
        command -v "$candidate"
        exit 0
    fi
done
echo "No CPython ${1:-3.10 or 3.12} on Linux x86-64 was found (on PATH, under pyenv or uv): install one, or name one with CPYTHON=/path/to/python; ttnn has wheels for no other." >&2
exit 2
