"""The commands of this repository: ``python3 -m tools demo | test | programs | lint | check``."""
