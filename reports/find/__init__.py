"""What runs left on disk: found, read, and compared with what it states of itself."""
