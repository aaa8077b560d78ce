"""Tracks: a new loss is placed among finished rows, of which only two cells are trained again."""
