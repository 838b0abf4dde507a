#!/usr/bin/env bash
# Build sdist and wheel into dist/, install the wheel into environments of their own, and use it there.
#
#   check_wheel.sh BIN      BIN is the `bin` of the project's environment
#
# What the wheel depends on is linked from BIN (`linked_packages.py`), not installed again: that takes
# seconds and no network. The release workflow installs everything from the index instead.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(cd "$1" && pwd)
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$bin/uv" build --quiet --out-dir dist

environment() { # NAME EXTRA...
    local name=$1
    shift
    "$bin/python" -m venv --without-pip "$work/$name"
    "$bin/python" -m pip --disable-pip-version-check --python "$work/$name/bin/python" \
        install --quiet --no-index --no-deps "$root"/dist/*.whl
    "$bin/python" infra/linked_packages.py "$work/$name"/lib/python3*/site-packages "$@"
}

environment minimal
environment all all
cd "$work" # away from the checkout: only the wheel can be imported

echo "with numpy and torch alone:"
minimal/bin/python "$root/infra/minimal_use.py"
if minimal/bin/tango --help >said.txt 2>&1; then
    echo "tango runs without its extra, so this check does not test what it should" >&2
    exit 1
fi
cat said.txt
grep -q "pip install 'tango-video\[jobs\]'" said.txt
[ "$(wc -l <said.txt)" -eq 1 ]

echo "with every extra:"
all/bin/tango --version
all/bin/tango doctor || [ $? -eq 1 ] # 1: this machine lacks something, the wheel does not
if all/bin/tango train-tiny >said.txt 2>&1; then
    echo "train-tiny runs without a checkout, so its training is in the wheel" >&2
    exit 1
fi
cat said.txt
grep -q "run it in a checkout" said.txt
recipe=shapes_tiny
all/bin/tango evaluate "$recipe" --limit 2 --set executor=local
