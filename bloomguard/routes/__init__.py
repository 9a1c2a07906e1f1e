"""The routes of a site: which guard answers for which view, and where."""
