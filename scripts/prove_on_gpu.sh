#!/usr/bin/env bash
# Proof of a GPU in one command, which ends within four minutes and needs no network.
#
#   scripts/prove_on_gpu.sh OUT [WEIGHTS] [--requests FILE] [--section NAME]...
#
# Writes the table OUT/gpu.md, with train.log. WEIGHTS is a folder with a FIRST model or another causal LM; FILE has
# requests as RankLLM writes them; sections are first, pe-rank, default, training, agreement, other-models, generation.
#
# Nothing need be installed of this project. Python 3.11 or newer needs torch, transformers, peft, accelerate,
# sentence-transformers, scikit-learn, scipy, typer and rich, as machines with CUDA have them, and the small packages
# pydantic, ahocorasick-rs, cachetools, grpcio with health-checking, reflection and status, httpx2 and protobuf.
# COMMIT names the version of a tree without .git. Without a GPU all models are tiny.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: $0 OUT [WEIGHTS] [--requests FILE] [--section NAME]..." >&2; exit 2; }
root=$(realpath "$(dirname "$0")/..")
export HF_HUB_OFFLINE=1 GRPC_VERBOSITY=NONE   # gRPC calls a socket that we close an error
export PYTHONPATH=$root:$root/training:$root/eval${PYTHONPATH:+:$PYTHONPATH}
exec timeout --kill-after=10 240 "${PYTHON:-python3}" -m scripts.bench.proof "$@"
