"""Proof of a device: the service, rankers, the pass alone, trainings and FAISS, beside the rates of the device."""
