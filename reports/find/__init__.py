"""What runs left on disk: found, read, and held against what it states of itself."""
