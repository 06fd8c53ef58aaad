"""Tools of the Model Context Protocol, over standard input and output."""
