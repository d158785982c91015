"""Every option, ini key and environment variable, read once into frozen settings."""
