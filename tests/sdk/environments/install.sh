#!/usr/bin/env bash
# Installs the clients of tests/sdk, each group in a separate environment: tests/sdk/environments/install.sh FOLDER.
# What is there already stays, unless its list of packages changed. Needs node, npm and a JDK; 1 GB and a few minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
mkdir -p "$folder/node"
for list in "$here"/*.txt; do
  environment=$folder/$(basename "$list" .txt)
  cmp -s "$list" "$environment/installed.txt" && continue
  echo "Installing $environment"
  "${PYTHON:-python3}" -m venv --clear "$environment"
  "$environment/bin/pip" install --disable-pip-version-check --no-compile -qq -r "$list"
  cp "$list" "$environment/installed.txt"
done
if ! cmp -s "$here/node/package.json" "$folder/node/installed.json"; then
  echo "Installing $folder/node"
  cp "$here/node/package.json" "$folder/node/"
  npm --prefix "$folder/node" install --no-audit --no-fund --silent
  cp "$here/node/package.json" "$folder/node/installed.json"
fi
