"""Routes: which guard answers for which view, and at which place."""
