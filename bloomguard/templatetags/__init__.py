"""Template tags of the admin page."""
