# shellcheck shell=bash
# Wrong input: each mistake gets an error that says what to do.

step "no service at the address" fails_with "127.0.0.1:1" rerank search "a query" --target 127.0.0.1:1 --timeout-s 3
