"""What a step means: scopes, lanes, requests and the sessions that decide on them; knows nothing of how it was caught."""

from .._lazy import later

later(globals(), "loop_queue", "mutations", "recovered", "verdict")
