"""Tables as sheets."""
