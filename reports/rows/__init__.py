"""Rows of a leaderboard, and which of them differ by more than luck."""
