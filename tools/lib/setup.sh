# The first steps of tools/demo and tools/test: installs missing Debian packages, configures and builds. To be sourced.
#
# Made for Debian 12 and 13, as root or with sudo. With everything in place it makes no call to apt. Functions:
#   setup_packages [PACKAGE...]     installs what is missing of the list below and of the arguments
#   setup_arm64                     installs what builds for arm64 and runs it here, and makes its root file system;
#                                   sets arm64_root; before a build with the preset arm64
#   setup_build PRESET [CMAKE...]   configures (CMakePresets.json) and builds; sets build_dir
#   setup_tests                     installs what only single tests need, as far as it can be had; after setup_build
#   setup_frameworks                installs the frameworks that Gossamer is used with, in a Python of their own
#   setup_hivemind                  installs hivemind in a Python of its own
#   setup_environment FOLDER PKG... makes such a Python, with packages from PyPI
#   setup_python MODULE...          sets python to an interpreter that has the modules, or ends with a message

set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# The packages to build, and to run most of the tests. The checks of .ci/run also need clang-format and clang-tidy.
build_packages=(
  g++ cmake ninja-build python3-yaml pkg-config libzmq3-dev cppzmq-dev capnproto libcapnp-dev libasio-dev libspdlog-dev libfmt-dev
  catch2 libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libsystemd-dev libsodium-dev libssl-dev libhwy-dev libxxhash-dev
  zlib1g-dev python3-numpy python3-sklearn python3-xxhash python3-jsonschema iproute2 iptables systemd-container
)
# The packages that single tests need; without them these tests are skipped.
test_packages=(
  python3-torch python3-pip python3-mypy chromium mkdocs python3-nbclient python3-ipykernel python3-matplotlib
)

say() { printf '== %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local package
  for package in "$@"; do
    # The status of an installed package is "install ok installed". For virtual and unknown names there is no output.
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *" ok installed" ]] || printf '%s\n' "$package"
  done
}

setup_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: taking it that the dependencies listed in tools/lib/setup.sh are installed"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "${build_packages[@]}" "$@")
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "these packages are missing and only root can install them: ${missing[*]}
       as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update </dev/null >&2 ||
    say "apt-get update failed; trying with the package lists at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" \
    </dev/null >&2 || fail "apt-get could not install: ${missing[*]}"
}

# Libraries and headers of this release for arm64 (tools/cmake/arm64.cmake). The packages are only unpacked, not
# configured. They stay in the cache, because tools/packages reads their dependencies.
setup_arm64() {
  setup_packages g++-aarch64-linux-gnu qemu-user-static mmdebstrap
  arm64_root=$repository/build/roots/arm64
  [[ ! -d $arm64_root ]] || return 0
  local begun=$arm64_root.begun release package link
  local packages=(libc6-dev "libstdc++-$(aarch64-linux-gnu-g++ -dumpversion)-dev")
  for package in "${build_packages[@]}"; do
    case $package in *-dev | catch2) packages+=("$package") ;; esac
  done
  release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  say "making a root of $release for arm64"
  rm -rf "$begun"
  mkdir -p "$repository/build/roots"
  mmdebstrap --quiet --variant=extract --architectures=arm64 --skip=cleanup/apt/cache \
    --include="$(IFS=,; printf %s "${packages[*]}")" "$release" "$begun" http://deb.debian.org/debian >&2 ||
    fail "mmdebstrap failed; the lines above say why"
  # Absolute links would lead to this machine's libraries.
  find "$begun/usr" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -snfr "$begun$(readlink "$link")" "$link"
  done
  mv "$begun" "$arm64_root"
}

setup_build() {
  local preset=$1
  shift
  build_dir=$repository/build
  case $preset in asan | tsan | package | fuzz | arm64) build_dir=$repository/build/$preset ;; esac
  say "configuring (preset $preset) and building in ${build_dir#"$repository"/}"
  # A compiler cache is used if there is one and the caller has not chosen a launcher.
  if command -v ccache >/dev/null && [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER+set} ]]; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  fi
  (cd "$repository" && cmake --preset "$preset" "$@" </dev/null >&2) ||
    fail "configuring failed; the lines above say why"
  cmake --build "$build_dir" --parallel "$(nproc)" </dev/null >&2 || fail "the build failed; the lines above say why"
}

setup_tests() {
  local package
  for package in "${test_packages[@]}"; do
    (setup_packages "$package") || say "without $package: some tests will be skipped"
  done
  # The package would start a server on this machine, so only its programs are unpacked (tests/system/CMakeLists.txt).
  local folder=$build_dir/prometheus
  if ! command -v promtool >/dev/null && [[ ! -x $folder/usr/bin/promtool ]]; then
    say "unpacking Prometheus in ${folder#"$repository"/}"
    mkdir -p "$folder"
    (cd "$folder" && apt-get -q download prometheus </dev/null >&2 && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) ||
      say "Prometheus could not be had: its tests will be skipped"
  fi
}

# Frameworks that are not in the distribution go to the build folder (tests/python/CMakeLists.txt), if they can be had.
setup_frameworks() {
  local folder=$build_dir/frameworks
  local packages=(torch transformers accelerate trl lightning jax flax optax keras 'ray[train]' tensorboard tensorboardX
    safetensors wandb mlflow-skinny)
  local modules=(torch transformers accelerate trl lightning jax flax optax keras ray.train tensorboard tensorboardX safetensors
    wandb mlflow)
  local all_found='import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))'
  "$folder/bin/python" -c "$all_found" "${modules[@]}" 2>/dev/null && return
  say "installing PyTorch, JAX and what is used with them (5 GB) from PyPI in ${folder#"$repository"/}"
  setup_environment "$folder" --retries 1 --timeout 20 "${packages[@]}" ||
    say "they could not be installed: their tests will be skipped"
}

# An environment of its own: hivemind wants newer packages than the distribution's. About 5 GB with PyTorch.
setup_hivemind() {
  local folder=$build_dir/hivemind
  has_modules "$folder/bin/python" hivemind sklearn && return
  say "installing hivemind and PyTorch from PyPI in ${folder#"$repository"/}"
  setup_environment "$folder" hivemind scikit-learn || say "hivemind could not be installed: it is left out"
}

# setup_environment FOLDER PACKAGE...: makes a Python in the folder with packages from PyPI. If a package cannot be
# installed, the folder is removed.
setup_environment() {
  local folder=$1
  shift
  setup_packages python3-venv
  { /usr/bin/python3 -m venv --clear "$folder" &&
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null >&2; } || {
    rm -rf "$folder"
    return 1
  }
}

has_modules() {
  local interpreter=$1 module
  shift
  command -v "$interpreter" >/dev/null || return 1
  for module in "$@"; do
    "$interpreter" -c "import $module" >/dev/null 2>&1 || return 1
  done
}

# The distribution's Python comes first, because it finds the packages installed above. If PYTHON is set, only that is
# tried.
setup_python() {
  local candidate
  for candidate in ${PYTHON:-/usr/bin/python3 python3}; do
    if has_modules "$candidate" "$@"; then
      python=$candidate
      return
    fi
  done
  fail "no Python with the modules $* (tried: ${PYTHON:-/usr/bin/python3 python3}); set PYTHON to one that has them"
}
