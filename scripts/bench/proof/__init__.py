"""Proof of a GPU: the service, rankers and trainings, and the rates of the device (`scripts/prove_on_gpu.sh`)."""

import time

#: When the proof began, before it imports torch, which takes 15 s on a machine that never read it.
START_S = time.monotonic()
