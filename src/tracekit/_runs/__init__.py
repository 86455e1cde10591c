"""Where runs are opened and closed: recorded, replayed, resumed, and decided about after a crash."""
