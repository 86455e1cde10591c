"""What is on disk: entries, chain, files, runs. It knows nothing of functions or SDKs."""
