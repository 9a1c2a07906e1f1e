"""The state table, its database connection, and each process's view of a guard's active filter."""
