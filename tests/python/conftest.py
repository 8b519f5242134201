"""What the Python tests share: where things are, and how the command line is run."""

import json
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
             if not key.startswith(("CACHEDIT_", "CACHE_DIT_", "HF_", "XDG_"))}
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


class Generate:
    """`cachedit generate` that has to succeed. Calls return the paths that it printed."""

    def __init__(self, run_cli):
        self.run_cli = run_cli
        self.folder = run_cli.folder
        self.stderr = ""

    def __call__(self, *arguments, **options):
        done = self.run_cli("generate", *arguments, **options)
        self.stderr = done.stderr
        assert done.returncode == 0, done.stderr
        paths = [self.folder / line for line in done.stdout.splitlines()]
        for path in paths:  # nothing but results on stdout
            assert path.is_file(), done.stdout
        return paths

    def report(self, *arguments):
        """What --json writes."""
        self(*arguments, "--json", "report.json")
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


@pytest.fixture
def generate(run_cli):
    return Generate(run_cli)


@pytest.fixture
def refused(run_cli):
    """Runs what has to fail, with its exit code and with `says` in its message, and leave nothing."""

    def run(*arguments, code, says, leaves=(), **options):
        done = run_cli(*arguments, **options)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if not line.startswith("cachedit warning: ")]
        message = "\n".join(lines)
        assert lines[0].startswith("cachedit: error: ["), done.stderr
        assert all(line.startswith("  ") for line in lines[1:]), done.stderr  # lists of faults
        for sign in ("terminate called", "Traceback", "what():", "Exception raised from", "frame #"):
            assert sign not in message
        for text in (says,) if isinstance(says, str) else says:
            assert text in message
        assert sorted(path.name for path in run_cli.folder.rglob("*")) == sorted(leaves)
        return message

    return run


@pytest.fixture
def model_copy(demo_model, tmp_path):
    """The shipped model as links: a test replaces the files that it wants to be otherwise."""
    folder = tmp_path / "model"
    shutil.copytree(demo_model, folder, copy_function=os.symlink)
    return folder
