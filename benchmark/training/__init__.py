"""Training: network, optimizer, one step, the loop over all of them, and several processes at
it.
"""
