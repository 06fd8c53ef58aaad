#!/usr/bin/env bash
# Generates the Python stubs of rerank/v1 from proto/.
#
#   make proto      (or: PYTHON=.venv/bin/python scripts/gen_proto.sh [OUT])
#
# OUT is the folder for the stubs; by default the repository. The test for stale stubs writes them elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}
"${PYTHON:-python3}" -m grpc_tools.protoc -Iproto \
  --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/rerank/v1/rerank.proto
