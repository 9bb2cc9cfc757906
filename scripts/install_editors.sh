#!/bin/sh
# Installs the real editors that the editor tests drive into folder $1 (default /opt/kernel-lsp-editors): VS Code's
# workbench (code-server), playwright-core, vsce, and from the distribution Chromium, ripgrep, Neovim and Emacs; where it
# can be had, newer Neovims and Helix too. Safe to repeat; a finished installation is left alone.
# Settings: APT=no skips the distribution's packages, NEWER=no the newer editors.
set -eu

folder=${1:-/opt/kernel-lsp-editors}
code_server_version=4.100.3
playwright_version=1.56.1
vsce_version=3.7.0
recipe=2 # goes up when what is installed changes though no version does
packages="chromium ripgrep neovim emacs-nox elpa-eglot libkrb5-dev libx11-dev libxkbfile-dev libsecret-1-dev pkg-config g++ make python3"
scripts=$(cd "$(dirname "$0")" && pwd)
started=$(date +%s)

fail() {
    printf 'install_editors: %s\n' "$1" >&2
    printf '  next: %s\n' "$2" >&2
    exit 2
}

# One job at a time and at low priority: the machine may have two cores and other work.
run() {
    nice -n 15 "$@" >>"$folder/install.log" 2>&1 || fail "failed: $*" "read the end of $folder/install.log"
}

install_packages() {
    [ "${APT:-yes}" = yes ] || return 0
    command -v apt-get >/dev/null || fail "no apt-get here" "install $packages yourself, then repeat with APT=no"
    missing=
    for package in $packages; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || fail "packages are missing and this is not root" "sudo apt-get install$missing"
    run apt-get update -qq
    # shellcheck disable=SC2086  # one word per package
    DEBIAN_FRONTEND=noninteractive run apt-get install -y -qq --no-install-recommends $missing
}

# A convenience: the tests of what cannot be had are skipped, and say so.
install_newer() {
    [ "${NEWER:-yes}" = yes ] || return 0
    nice -n 15 sh "$scripts/install_newer_editors.sh" "$folder/newer" >>"$folder/install.log" 2>&1 ||
        echo "install_editors: newer editors could not be installed, and their tests will be skipped: $folder/install.log"
}

# The native module in folder $1, without its install script. node-gyp would download the headers of Node.js, which most
# installations have already.
compile() {
    cd "$1"
    shift
    node_prefix=$(dirname "$(dirname "$(command -v node)")")
    headers=
    [ ! -d "$node_prefix/include/node" ] || headers=--nodedir=$node_prefix
    # shellcheck disable=SC2086  # empty, or one word
    JOBS=1 run node "$(npm root -g)/npm/node_modules/node-gyp/bin/node-gyp.js" rebuild $headers "$@"
}

# The published package has the workbench without the modules that it needs: they come from the registry in three steps,
# without install scripts, because those download from places other than the registry.
install_workbench() {
    mkdir -p "$folder/code-server"
    cd "$folder/code-server"
    [ -f package.json ] || printf '{"private": true}\n' >package.json
    run npm install --ignore-scripts --no-audit --no-fund "code-server@$code_server_version"
    workbench=$folder/code-server/node_modules/code-server/lib/vscode
    cd "$workbench"
    run npm install --ignore-scripts --omit=dev --no-audit --no-fund
    cd "$workbench/extensions"
    run npm install --ignore-scripts --omit=dev --no-audit --no-fund
    cd "$workbench"
    JOBS=1 run npm rebuild @vscode/spdlog native-watchdog @parcel/watcher kerberos
    compile "$workbench/node_modules/node-pty"
    compile "$folder/code-server/node_modules/argon2" --module_name=argon2 --napi_build_version=3 --napi_version=9 \
        "--module_path=$folder/code-server/node_modules/argon2/lib/binding/napi-v3"
    mkdir -p "$workbench/node_modules/@vscode/ripgrep/bin"
    ln -sf "$(command -v rg)" "$workbench/node_modules/@vscode/ripgrep/bin/rg"
    run node "$folder/code-server/node_modules/code-server/out/node/entry.js" --version
}

install_tools() {
    mkdir -p "$folder/tools"
    cd "$folder/tools"
    [ -f package.json ] || printf '{"private": true}\n' >package.json
    run npm install --ignore-scripts --no-audit --no-fund "playwright-core@$playwright_version" "@vscode/vsce@$vsce_version"
}

command -v npm >/dev/null || fail "npm was not found" "install Node.js 20 or newer"
[ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20')" = true ] ||
    fail "Node.js $(node --version) is too old" "install Node.js 20 or newer"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd) # absolute: the steps below change the folder
stamp=$folder/installed-$code_server_version-$playwright_version-$vsce_version-$recipe
if [ ! -f "$stamp" ]; then
    install_packages
    install_tools
    install_workbench
    : >"$stamp"
fi
install_newer
echo "Editors are in $folder ($(($(date +%s) - started)) s)"
