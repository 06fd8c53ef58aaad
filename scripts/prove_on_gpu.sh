#!/usr/bin/env bash
# Tests and figures of a rented GPU in one command, which ends within nine minutes and needs no network.
#
#   scripts/prove_on_gpu.sh OUT [WEIGHTS]
#
# Writes OUT/gpu.md and OUT/gpu.json. WEIGHTS is a folder with a causal LM. Nothing is installed: the environment has the
# package with its extras `gpu`, `offline` and `dev`. Without a GPU all models are tiny.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: $0 OUT [WEIGHTS]" >&2; exit 2; }
root=$(realpath "$(dirname "$0")/..")
export HF_HUB_OFFLINE=1 PYTHONPATH=$root
exec timeout --kill-after=5 530 "${PYTHON:-python3}" -m scripts.bench.prove_on_gpu --tests "$root/tests" "$@"
