"""Tracks: a new loss is placed among finished rows, of which none is trained again."""
