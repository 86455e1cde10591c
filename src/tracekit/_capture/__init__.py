"""How calls are caught: patches, wrappers and guards around the gate; knows nothing of any one SDK."""
