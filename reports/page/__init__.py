"""Figures, and the page that holds them with the tables."""
