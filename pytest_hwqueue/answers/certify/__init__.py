"""Whether a mode keeps what it claims, resource by resource: ``hwq certify``."""
