"""The commands of this repository: ``python3 -m tools demo | test | programs | docs | lint | check``."""
