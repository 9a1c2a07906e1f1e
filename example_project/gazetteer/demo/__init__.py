"""`manage.py demo`: the example under attack, without a guard, with null caching and with bloomguard.

- `traffic`: what is asked, and which of it exists
- `server`: the example under gunicorn, in one mode
- `clients`: processes that ask it over HTTP and measure
- `report`: the figures as a table, JSON, a chart and a verdict
- `query_counter`, `null_caching`: what the server has installed for the demo only
"""
