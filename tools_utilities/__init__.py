"""Bytes: stores, formats, cache; knows nothing of sentences, jobs or tensors."""
