"""The data and the background tasks of the admin page."""
