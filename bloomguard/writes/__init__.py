"""Hooks into the ORM, its signals and raw SQL, to add the keys of written rows to the filters."""
