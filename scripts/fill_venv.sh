#!/bin/sh
# Installs into the environment $1 what the other words name to pip. uv takes a third of pip's time, but does not read
# pip's configuration: where there is no uv, or it finds no index, pip takes over. Neither compiles every package (90
# seconds): Python compiles the modules that it imports. At a terminal one line counts what came.
set -u

venv=$1
shift
uv=.venv/bin/uv
megabytes() {
    du -smc "$venv" "$("$uv" cache dir 2>/dev/null || echo "$venv")" 2>/dev/null | tail -n 1 | cut -f 1
}
if [ -t 2 ]; then
    before=$(megabytes)
    while sleep 2; do printf '\r%s: %s MB new' "$venv" $(($(megabytes) - before)) >&2; done &
    trap "kill $!; echo >&2" EXIT
    trap 'exit 130' INT
fi
other=
[ "$venv" = .venv ] || other="--python $venv/bin/python"
"$uv" pip install --quiet --python "$venv/bin/python" "$@" ||
    .venv/bin/python -m pip $other install --disable-pip-version-check --no-compile --quiet "$@"
