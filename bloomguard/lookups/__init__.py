"""What a view asks of a guard beyond a verdict: rows, many values, one load for all who wait."""
