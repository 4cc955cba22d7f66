"""One forward over a prompt and what it leaves behind."""
