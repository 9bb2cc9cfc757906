#!/bin/sh
# Creates the virtual environment $1 and installs torch, this package, and the CUDA compiler where the machine has none.
# Safe to repeat. Settings: PYTHON (interpreter), TORCH (version), PIP_INDEX_URL and the like (pip's own).
set -eu

venv=$1
torch_version=${TORCH:-2.13.0}
started=$(date +%s)

fail() {
    printf 'make install: %s\n' "$1" >&2
    printf '  next: %s\n' "$2" >&2
    exit 2
}

is_new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        ! is_new_enough "$PYTHON" || command -v "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11; do
        if is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
}

create_venv() {
    python=$(find_python)
    [ -n "$python" ] || fail "Python 3.11 or newer was not found (tried ${PYTHON:-python3, python3.13, 3.12, 3.11})" \
        "sudo apt-get install python3 python3-venv, or name one: make install PYTHON=/path/to/python3.12"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot create virtual environments" \
        "sudo apt-get install $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    echo "Creating $venv with $("$python" --version) ($python)"
    "$python" -m venv --clear "$venv"
}

install() {
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$@" ||
        fail "pip could not install: $*" "read pip's message above; behind a proxy set HTTPS_PROXY or PIP_INDEX_URL"
}

has_cuda_compiler() {
    "$venv/bin/python" -c 'from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain as find; print(find().origin)' \
        2>/dev/null
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || create_venv

# By exact version and before anything else: whatever else is installed must not choose another torch. pip compiles on one
# core, so that is done on all of them beside the next step.
echo "Installing torch $torch_version"
install --no-compile "torch==$torch_version"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" -m compileall -qq -j 0 "$packages" & # silent: some of torch's files are for a newer Python
compiling=$!
constraints=$venv/torch-constraint.txt
"$venv/bin/python" -m pip freeze --disable-pip-version-check | grep '^torch==' >"$constraints"

# Finding a compiler takes the standard library alone: what has to be installed is known beforehand.
extras=dev,llm
if ! has_cuda_compiler >/dev/null; then
    echo "CUDA compiler: none found, NVIDIA's NVRTC is installed from PyPI"
    extras=$extras,cuda
fi
echo "Installing kernel_lsp and its tools"
install --constraint "$constraints" --editable ".[$extras]"
found=$(has_cuda_compiler) || fail "NVRTC was installed but cannot be found" "$venv/bin/kernel-lsp doctor"
wait "$compiling" || true
echo "CUDA compiler: $found"

echo "Installed in $(($(date +%s) - started)) s"
