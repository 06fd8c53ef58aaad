#!/usr/bin/env bash
# Generates rerank/v1 from proto/. `scripts/gen_proto.sh OUT` writes elsewhere, for the test that looks for stale stubs.
# Usage: make proto      (or: PYTHON=.venv/bin/python scripts/gen_proto.sh [OUT])
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}
"${PYTHON:-python3}" -m grpc_tools.protoc -Iproto \
  --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/rerank/v1/rerank.proto
