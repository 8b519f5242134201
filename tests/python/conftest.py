"""What the Python tests share: where things are, and how the command line is run."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CACHEDIT_BUILD_DIR", ROOT / "build" / "release")).resolve()


@pytest.fixture(scope="session")
def source_dir():
    return ROOT


@pytest.fixture(scope="session")
def demo_model():
    return ROOT / "models" / "emoji-flux"


@pytest.fixture(scope="session")
def cli_path():
    return BUILD / "apps" / "cli" / "cachedit"


@pytest.fixture(scope="session")
def probe_path():
    return pathlib.Path(os.environ.get("CACHEDIT_PROBE", BUILD / "tests" / "cachedit_probe"))


@pytest.fixture(scope="session")
def cli_environment():
    """One thread, so that results repeat and tests may run side by side; no settings from outside."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("CACHEDIT_", "HF_", "XDG_"))}
    return {**clean, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run_cli(cli_path, cli_environment, tmp_path):
    """Runs the command line in an empty folder. Bytes that are not UTF-8 survive the round trip."""
    folder = tmp_path / "cwd"
    folder.mkdir()

    def run(*arguments, env=None, cwd=folder, **options):
        options.setdefault("timeout", 300)
        return subprocess.run([os.fspath(cli_path), *(as_argument(a) for a in arguments)], cwd=cwd,
                              env={**cli_environment, **(env or {})}, capture_output=True, text=True,
                              encoding="utf-8", errors="surrogateescape", check=False, **options)

    run.folder = folder
    return run


def as_argument(value):
    return value if isinstance(value, bytes) else str(value)


@pytest.fixture
def model_copy(demo_model, tmp_path):
    """The shipped model as links: a test replaces the files that it wants to be otherwise."""
    folder = tmp_path / "model"
    shutil.copytree(demo_model, folder, copy_function=os.symlink)
    return folder
