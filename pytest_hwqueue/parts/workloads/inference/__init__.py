"""Workloads that serve language models: decoding, speculation, batching and retrieval."""
