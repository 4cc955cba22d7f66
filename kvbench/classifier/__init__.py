"""Whether a prompt asks to find or to gather."""
