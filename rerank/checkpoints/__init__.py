"""Holds the bundled checkpoints, and reads the files in a checkpoint's folder."""
