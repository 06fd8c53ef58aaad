"""Training of PE-Rank rankers (`train-pe-rank`)."""
