"""The bundled checkpoints, and readers of the files in a checkpoint's folder."""
