"""What is on disk: entries, chain, files, runs. It knows nothing of functions or SDKs."""

from .._lazy import later

later(globals(), "indexes", "keys", "reader", "seals")
