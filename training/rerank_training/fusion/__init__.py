"""Weights of the fusion, chosen from judged lists (`train-fusion`)."""
