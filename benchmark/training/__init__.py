"""Training: network, optimizer, one step, the loop over steps, and several processes."""
