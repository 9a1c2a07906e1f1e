"""The door: absent IDs are answered before Django makes a request of them, with the site's own 404 page as bytes."""
