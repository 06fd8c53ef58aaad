"""Training of a correction of the fusion's scores (`train-fusion`)."""
