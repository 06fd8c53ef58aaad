# shellcheck shell=bash
# The configuration: mistakes are named with their line before anything is loaded (check-only commands).

# check_refuses PATTERN YAML: `rerank serve --check` refuses the settings with a message that matches the pattern.
check_refuses() {
  local pattern=$1
  printf '%b' "$2" >service.yaml
  fails_with "$pattern" rerank serve --check --config service.yaml
}

step "misspelt setting" check_refuses "line 2: lissten: unknown setting; did you mean listen\\?" 'drain_s: 5\nlissten: 127.0.0.1:0\n'
step "mapping in the place of a list" check_refuses "line 1: models: expected a list, .* given a mapping" \
  'models: {name: mine, ranker: first}\n'
step "http: true" check_refuses "line 1: http: expected HOST:PORT, such as .* given true" 'http: true\n'
step "setting that is there twice" check_refuses "line 2: the key 'listen' is in line 1 already" \
  'listen: 127.0.0.1:0\nlisten: 127.0.0.1:1\n'
step "folder of a model that is missing" check_refuses "there is no folder nowhere \\(relative paths begin at the working" \
  'listen: 127.0.0.1:0\nmodels: [{name: mine, ranker: first, path: nowhere}]\n'
step "the same at the real start" fails_with "there is no folder nowhere" rerank serve --config service.yaml
: >empty.yaml
step "empty key file" fails_with "empty.yaml is empty; .rerank keys add NAME --file empty.yaml." \
  rerank serve --check --listen 127.0.0.1:0 --keys empty.yaml
step "index folder that is missing" fails_with "build one with .rerank index --collection COLLECTION --out nowhere" \
  rerank serve --check --listen 127.0.0.1:0 --index nowhere
