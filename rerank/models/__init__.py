"""Language models and encoders: loading them, and reading them in one forward pass."""
