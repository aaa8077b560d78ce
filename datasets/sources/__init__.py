"""The sources of images: each kind of source is one file with one class, which reads it and divides
it into splits.

A source of another wheel is found by an entry point of the group `regbench.sources`; `base` says
what a source is. A tuning split is cut from the source's training images, so that nothing is ever
selected on "test".
"""
