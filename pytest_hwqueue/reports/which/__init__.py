"""What ``hwq which`` prints, draws and writes."""
