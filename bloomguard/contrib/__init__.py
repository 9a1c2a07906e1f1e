"""Optional integrations; bloomguard itself imports none of them."""
