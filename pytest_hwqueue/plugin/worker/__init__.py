"""The process that measures a test: started, followed, and reported whatever becomes of it."""
