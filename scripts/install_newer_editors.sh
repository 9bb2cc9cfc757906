#!/bin/sh
# Puts Neovim and Helix of newer Debian releases into folder $1, each with its own libraries, for the editor tests:
# $1/trixie/bin/nvim, $1/trixie/bin/hx and $1/sid/bin/nvim. Nothing of the system changes, and it needs no root.
# Safe to repeat: what is there is left alone.
set -eu

folder=$1
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

fail() {
    printf 'install_newer_editors: %s\n' "$1" >&2
    exit 2
}

# An apt that knows one release and a system with nothing installed, so that every library comes along.
write_configuration() {
    mkdir -p "$place/state/lists/partial" "$place/cache/archives/partial"
    : >"$place/status"
    echo "deb [signed-by=$keyring] $mirror $release main" >"$place/sources.list"
    cat >"$place/apt.conf" <<END
Dir::State "$place/state";
Dir::State::status "$place/status";
Dir::Cache "$place/cache";
Dir::Etc::sourcelist "$place/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
END
}

# The program under its release's own dynamic linker: the system's C library is older. What it finds beside itself
# otherwise, it is told.
write_starter() {
    libraries=$place/root/usr/lib/x86_64-linux-gnu
    first=
    [ "$1" != nvim ] || first="--cmd 'set runtimepath+=$place/root/usr/lib/nvim'"
    mkdir -p "$place/bin"
    cat >"$place/bin/$1" <<END
#!/bin/sh
export VIMRUNTIME=$place/root/usr/share/nvim/runtime HELIX_RUNTIME=$place/root/usr/lib/hx/runtime
exec $libraries/ld-linux-x86-64.so.2 --library-path $libraries $place/root/usr/bin/$1 $first "\$@"
END
    chmod +x "$place/bin/$1"
    "$place/bin/$1" --version >/dev/null 2>&1 || fail "$1 of $release does not start"
}

# $1 is the release; the others are its packages, whose programs are named after `=` where they differ.
install_from() {
    release=$1
    place=$folder/$release
    shift
    [ ! -f "$place/installed" ] || return 0
    rm -rf "$place"
    mkdir -p "$place"
    write_configuration
    export APT_CONFIG="$place/apt.conf"
    apt-get update -qq || fail "the lists of $release could not be read from $mirror"
    # shellcheck disable=SC2046  # one word per package
    apt-get install -y -qq --download-only $(for each in "$@"; do echo "${each%=*}"; done) ||
        fail "the packages of $release could not be had"
    mkdir -p "$place/root"
    for package in "$place"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$place/root"
    done
    for each in "$@"; do
        write_starter "${each#*=}"
    done
    rm -rf "$place/state" "$place/cache"
    : >"$place/installed"
}

[ "$(uname -m)" = x86_64 ] || fail "this is known to work on x86_64 alone"
command -v apt-get >/dev/null || fail "no apt-get here"
[ -f "$keyring" ] || fail "$keyring is not here: apt-get install debian-archive-keyring"
install_from trixie neovim=nvim hx
install_from sid neovim=nvim
