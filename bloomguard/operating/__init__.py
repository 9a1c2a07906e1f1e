"""What the admin page shows and does."""
