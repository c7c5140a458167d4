"""Several channels in one process of relay or checker: configuration, metrics, threads, health."""
