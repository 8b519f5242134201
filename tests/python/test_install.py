"""`cmake --install` gives a package that a CMake project outside the tree finds, links and runs, and a
command line that finds its libraries and its model."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("CACHEDIT_BUILD_DIR", ROOT / "build" / "release")).resolve()


def run(*command, env=None):
    """stdout of a command that must succeed; libraries must be found without help from outside."""
    clean = {key: value for key, value in os.environ.items()
             if key != "LD_LIBRARY_PATH" and not key.startswith("CACHEDIT_")}
    done = subprocess.run([str(part) for part in command], env={**clean, **(env or {})},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def png_size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_public_headers_are_installed_and_no_others(prefix):
    installed = sorted(path.name for path in (prefix / "include").rglob("*") if path.is_file())
    assert installed == sorted(path.name for path in (ROOT / "include" / "cachedit").glob("*.h"))


def test_installed_command_line_draws_with_the_installed_model(prefix, tmp_path):
    picture = tmp_path / "apple.png"
    out = run(prefix / "bin" / "cachedit", "generate", "--prompt", "red apple", "--steps", "1", "--seed", "1",
              "--save-path", picture, "--quiet")
    assert out == f"{picture}\n"
    assert png_size(picture) == (128, 128)
    shown = run(prefix / "bin" / "cachedit", "inspect")
    assert shown.startswith(f"{prefix / 'share' / 'cachedit' / 'models' / 'emoji-flux'}\n")


def test_one_openmp_runtime_is_loaded_and_it_is_that_of_libtorch(prefix):
    libraries = run("ldd", prefix / "bin" / "cachedit")
    runtimes = re.findall(r"lib(?:gomp|omp|iomp5)\S* => (\S+)", libraries)
    torch = re.search(r"libtorch_cpu\.so => (\S+)", libraries).group(1)
    assert runtimes == [str(pathlib.Path(torch).parent / "libgomp.so.1")]
    assert "not found" not in libraries


def test_a_project_outside_the_tree_builds_against_the_package(prefix, tmp_path):
    run("cmake", "-S", ROOT / "examples" / "standalone", "-B", tmp_path / "build", "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", tmp_path / "build")
    picture = tmp_path / "koala.png"
    run(tmp_path / "build" / "text_to_image", "koala", picture)
    assert png_size(picture) == (128, 128)
