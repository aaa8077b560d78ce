"""Settings: the cell, which decides a run's outcome; the runtime and the cluster, which do not."""
