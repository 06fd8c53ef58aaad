"""Proof of a device: the service, rankers, the pass alone, trainings and FAISS, and the rates of the device."""
