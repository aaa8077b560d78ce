"""Backbones: what they are made of, and published weights for them."""
