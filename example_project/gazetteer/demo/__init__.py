"""`manage.py demo`: the example under attack: without a guard, with null caching, and guarded in three places.

- `traffic`: what is asked, and which of it exists
- `server`, `wsgi`: the example under gunicorn, in one mode
- `clients`: processes that ask it over HTTP and measure
- `report`: the figures as a table, JSON, a chart and a verdict
- `query_counter`, `null_caching`, `guards`: what the server has installed for the demo only
"""
