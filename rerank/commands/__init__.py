"""The command line: `rerank serve | index | search | rank | demo`."""
