# shellcheck shell=bash
# Help and output of the commands: an example in each help, undivided values, and output for programs that is not wrapped.

every_help_has_an_example() {
  local command
  for command in serve index expand verify search rank models health demo inspect "keys add"; do
    # shellcheck disable=SC2086  # two words
    output_has "^    rerank $command" env COLUMNS=60 rerank $command --help || return 1
  done
}

# A file name of 200 characters, in an output that would be 40 columns wide.
verify_is_one_line() {
  local folder
  folder=$(printf 'index-%.0s' {1..33})
  cp -r index "$folder"
  output_has "^$folder: [0-9]+ files are as they were built$" env COLUMNS=40 rerank verify "$folder"
  rm -r "$folder"
}

step "help has examples" every_help_has_an_example
step "help divides no value" output_has 'hybrid-z-score' env COLUMNS=40 rerank search --help
step "output for programs is not wrapped" verify_is_one_line
step "no service at the address" fails_with "127.0.0.1:1" rerank search "a query" --target 127.0.0.1:1 --timeout-s 3
step "number that is too large" fails_with "^Error: .*99999999999 is more than 2147483647$" \
  rerank search "a query" --top-n 99999999999
