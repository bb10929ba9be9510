"""Where a run's metrics go beside the store and Prometheus."""
