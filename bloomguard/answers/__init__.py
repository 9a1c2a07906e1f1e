"""What a request is answered, and what becomes of that."""
