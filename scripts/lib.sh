# Shared by the scripts of this folder: messages, packages, build. Sourced, never run.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What the build needs, as Debian and Ubuntu name it (Debian 12, Ubuntu 24.04 and newer: GCC 12, CMake 3.25).
packages=(g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libyaml-cpp-dev libpcre2-dev
  libutf8proc-dev libxxhash-dev libgtest-dev)

say() { printf '== %s\n' "$*"; }

# fail CODE MESSAGE [HINT]: exit codes are those of docs/errors.md
fail() {
  printf 'error: %s\n' "$2" >&2
  if [[ $# -gt 2 ]]; then printf '  hint: %s\n' "$3" >&2; fi
  exit "$1"
}

have() { command -v "$1" >/dev/null 2>&1; }

# The packages above that dpkg does not know as installed, on one line.
missing_packages() {
  local package missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
  done
  printf '%s\n' "${missing[*]}"
}

# As root, by sudo, or not at all.
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    fail 69 "neither root nor sudo: cannot run $*" "run it as root, then start this script again"
  fi
}

# For the other scripts: packages by scripts/setup where apt is, else only a note, because the libraries may be there
# under other names; CMake then names the one that is not.
ensure_packages() {
  if have apt-get; then
    "$root/scripts/setup"
  else
    say "no apt-get here: building with the libraries that are there (scripts/setup lists what is needed)"
  fi
}

# One job a core, but a gigabyte and a half of free memory for each.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo 2>/dev/null || echo "$cores")
  if ((memory < 1)); then memory=1; fi
  echo $((cores < memory ? cores : memory))
}

# build PRESET [TARGET...]
build() {
  local preset=$1 launcher=()
  shift
  if have ccache; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  say "build $preset ($(jobs) jobs)"
  (
    cd "$root"
    cmake --preset "$preset" "${launcher[@]}" --log-level=WARNING >/dev/null ||
      fail 69 "CMake found no usable compiler or a library is missing" "scripts/setup lists what is needed"
    cmake --build --preset "$preset" -j "$(jobs)" ${1:+--target "$@"} -- --quiet
  ) || exit $?
}
