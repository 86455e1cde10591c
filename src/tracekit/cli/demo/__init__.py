"""``tracekit demo``: an agent, a model server on loopback, and the command that plays them against each other."""
