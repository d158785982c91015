"""Every GPU of a cluster: measured through Ray, or collected by other means, and compared."""
