"""``tracekit demo``: an agent, a model server on loopback, and the command that records and replays them."""
