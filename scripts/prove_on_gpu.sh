#!/usr/bin/env bash
# Proof of a rented GPU in one command, which ends within nine minutes and needs no network.
#
#   scripts/prove_on_gpu.sh OUT [WEIGHTS]
#
# Writes OUT/gpu.md. WEIGHTS is a folder with a causal LM. Nothing is installed: it needs Python 3.11 or
# newer with torch, transformers, peft, sentence-transformers, scikit-learn, typer and rich, as machines with CUDA have
# them, and the small packages pydantic, ahocorasick-rs and cachetools. Without a GPU all models are tiny.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: $0 OUT [WEIGHTS]" >&2; exit 2; }
root=$(realpath "$(dirname "$0")/..")
export HF_HUB_OFFLINE=1 PYTHONPATH=$root:$root/training${PYTHONPATH:+:$PYTHONPATH}
exec timeout --kill-after=5 530 "${PYTHON:-python3}" -m scripts.bench.prove_on_gpu "$@"
