"""Which paths are guarded: URL patterns, the views behind them, and what can be told of both."""
