"""One run: network, optimizer, trainer, checkpoint, evaluation, measurement, record."""
