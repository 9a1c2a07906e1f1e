"""The suite on every Python and Django that bloomguard supports: ``nox``; ``nox --list`` says which there are.

``nox -s compatibility`` runs guards of the models of apps from PyPI, ``nox -s djangos_own`` Django's own tests with
guards of their models, ``nox -s drivers`` the suite with older drivers.
``nox -s wheel`` runs the suite on the wheel that ``make dist`` has built, with no source of the package in sight.
"""

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"

SUPPORTED = [
    (python, django)
    for django, pythons in {
        "5.2": ["3.10", "3.11", "3.12", "3.13", "3.14"],
        "6.0": ["3.12", "3.13", "3.14"],
        "6.1": ["3.12", "3.13", "3.14"],
    }.items()
    for python in pythons
]


@nox.session
@nox.parametrize("python,django", SUPPORTED)
def tests(session: nox.Session, django: str) -> None:
    """The suite, from the source."""
    session.install("--editable", ".[test]", f"django~={django}.0")
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow", *session.posargs)


@nox.session
@nox.parametrize("python,django", [("3.10", "5.2"), ("3.12", "6.1")])
def compatibility(session: nox.Session, django: str) -> None:
    """Apps from PyPI, each with guards of its models, on SQLite and on PostgreSQL, and middleware from PyPI."""
    middleware = ["django-allauth", "django-prometheus", "elastic-apm", "scout-apm", "social-auth-app-django"]
    session.install("--editable", ".[compatibility]", *middleware, f"django~={django}.0")
    session.run("python", "-m", "pytest", "tests/door/test_known_middleware.py")
    command = ["python", "-m", "pytest", "tests/compatibility", "--ds", "tests.compatibility.settings"]
    for database in ("default", "postgresql"):
        session.run(*command, *session.posargs, env={"BLOOMGUARD_COMPATIBILITY_DATABASE": database})


@nox.session
@nox.parametrize("python,django", [("3.10", "5.2"), ("3.12", "6.1")])
def djangos_own(session: nox.Session, django: str) -> None:
    """Django's own tests, with guards of all their models, on SQLite and on PostgreSQL."""
    session.install("--editable", ".[test]", f"django~={django}.0")
    for database in ("default", "postgresql"):
        command = ["python", "-m", "tests.djangos_own", *session.posargs]
        session.run(*command, env={"BLOOMGUARD_COMPATIBILITY_DATABASE": database})


@nox.session(python="3.10")
def drivers(session: nox.Session) -> None:
    """The tests that send anything to PostgreSQL or Redis, with psycopg 2 and the oldest redis-py that is supported.

    The tests' own servers need psycopg 3.
    """
    session.install("--editable", ".[test]", "django~=5.2.0", "psycopg2-binary>=2.9.9", "redis~=5.3.0")
    folders = [f"tests/{name}" for name in ("state", "stores", "writes", "rebuild", "test_metrics.py")]
    command = ["python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow"]
    session.run(*command, *session.posargs or folders, env={"BLOOMGUARD_TEST_PSYCOPG": "2"})


@nox.session
def wheel(session: nox.Session) -> None:
    """The suite on the one wheel in ``dist/``, from a folder that holds the tests alone."""
    (built,) = Path("dist").glob("*.whl")
    session.install(f"{built}[test]")
    folder = Path(session.create_tmp())
    for name in ("tests", "example_project", "docs", "bench"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "db.sqlite3*", ".bloomguard"))
    for path in ("pyproject.toml", "Makefile", *Path().glob("*.md")):
        shutil.copy(path, folder)
    wheel = {"BLOOMGUARD_WHEEL": str(built.resolve())}
    session.chdir(folder)
    session.run(
        "python", "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow", *session.posargs, env=wheel
    )
