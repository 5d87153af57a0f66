"""Which model: known names, and the folders and digests behind them."""
