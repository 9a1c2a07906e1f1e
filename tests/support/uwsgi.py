"""``python -m tests.support.uwsgi`` is uWSGI with these arguments."""

import sys

import pyuwsgi

pyuwsgi.run(["--die-on-term", "--need-app", "--disable-logging", *sys.argv[1:]])
