"""The leaderboard of many bundles as a static site."""
