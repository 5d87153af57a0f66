"""Files: locations, sources, strategies, parts and publishing."""
