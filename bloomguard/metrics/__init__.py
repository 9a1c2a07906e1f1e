"""Count verdicts, flush the counts to the stores, read them back as series."""
