"""Language models and encoders: loading them and running their forward passes."""
