#!/usr/bin/env bash
# The Debian packages of debian.txt, which the tests marked `system` need.
#
#   debian_packages.sh check     ends with 1 and one line if one is missing; changes nothing
#   debian_packages.sh install   installs what is missing, as root or with sudo; nothing else runs as root
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

missing() { # prints the packages of debian.txt that are not installed
    local package
    while read -r package; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done < <(sed 's/#.*//; /^[[:space:]]*$/d' "$here/debian.txt")
}

fail() {
    echo "infra/debian_packages.sh: $*" >&2
    exit 1
}

command -v dpkg-query >/dev/null ||
    fail "this is no Debian or Ubuntu, which the tests marked system need; make test and make test-slow do without"
mapfile -t packages < <(missing)
[ ${#packages[@]} -gt 0 ] || exit 0

case "${1:-}" in
check)
    fail "Debian packages are missing: ${packages[*]}; install them with infra/debian_packages.sh install"
    ;;
install)
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "neither root nor sudo; let somebody who is root run: apt-get install ${packages[*]}"
        as_root=(sudo)
    fi
    echo "installing Debian packages: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get -o Acquire::Retries=3 update -qq
    # The variable is given once more because sudo does not pass it on.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${packages[@]}"
    mapfile -t packages < <(missing)
    [ ${#packages[@]} -eq 0 ] || fail "apt-get installed all but: ${packages[*]}"
    ;;
*)
    fail "say check or install"
    ;;
esac
