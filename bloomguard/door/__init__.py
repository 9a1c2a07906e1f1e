"""The door: answer absent IDs before Django creates a request, with the site's own 404 page as bytes."""
