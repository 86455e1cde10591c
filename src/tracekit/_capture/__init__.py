"""How calls are caught: patches, wrappers and guards that pass each call to the session; knows nothing of any one SDK."""

from .._lazy import later

later(globals(), "commands", "contracted", "popen", "stdio")
