#!/bin/sh
# Removes the environments that are named, if all in them is ours: the mark `steps` or `ready`, or no package but pip's.
# Anything else stays: one line, status 2.
set -eu

entries='bin|include|lib|lib64|share|etc|man|steps|ready|pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG'
tools='(pip|setuptools|wheel|pkg_resources|_distutils_hack|distutils-precedence|_virtualenv|__pycache__)([-.].*)?'
status=0
for venv; do
    [ -n "$(ls -A -- "$venv" 2>/dev/null)" ] || continue  # absent or empty
    if [ ! -f "$venv/pyvenv.cfg" ]; then
        reason="is no Python environment"
    elif other=$(ls -A -- "$venv" | grep -vxE "$entries"); then
        reason="holds $(echo "$other" | head -n 1), which is no part of an environment"
    elif [ ! -e "$venv/steps" ] && [ ! -e "$venv/ready" ] && ls -A -- "$venv"/lib/python*/site-packages 2>/dev/null | grep -vqxE "$tools"; then
        reason="is an environment with packages that were not installed from here"
    else
        rm -rf -- "$venv"
        continue
    fi
    echo "$venv $reason: nothing was removed; move it, or name another folder" >&2
    status=2
done
exit $status
