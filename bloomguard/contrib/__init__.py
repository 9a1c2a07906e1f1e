"""Optional integrations, each imported only by who asks for it."""
