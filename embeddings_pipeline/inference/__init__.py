"""Texts to vectors: batches, devices, encoders and the cache that holds them."""
