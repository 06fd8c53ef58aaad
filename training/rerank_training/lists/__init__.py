"""Training lists: their file formats, their sources and teachers, and the windows that are drawn from them."""
