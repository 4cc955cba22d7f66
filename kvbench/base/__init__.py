"""What everything stands on: errors, checks, hashes, bytes, progress."""
