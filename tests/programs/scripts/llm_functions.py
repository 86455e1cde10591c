def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"
