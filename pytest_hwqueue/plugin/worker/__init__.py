"""The process that measures a test: starts and follows it, and reports it however it ends."""
