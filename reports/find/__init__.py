"""Find and read what runs left on disk, and compare it with what it states about itself."""
