"""What a step means: scopes, lanes, the gate and the sessions behind it; knows nothing of how it was caught."""
