"""Load tests: calls at given times, and the requests that they send."""
