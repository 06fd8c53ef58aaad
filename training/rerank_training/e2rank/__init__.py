"""Training of E2Rank rankers (`train-e2rank`)."""
