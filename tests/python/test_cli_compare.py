"""`cachedit compare`: pairs of pictures, folders, and what it refuses."""

import json
import math

import numpy as np
import pytest
from PIL import Image

WIDTH, HEIGHT = 24, 16


def picture(path, offset=0, size=(WIDTH, HEIGHT)):
    """A gradient, every sample raised by `offset`."""
    y, x = np.mgrid[0:size[1], 0:size[0]]
    samples = np.stack([x * 5, y * 7, x + y], -1) + offset
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(samples.astype(np.uint8)).save(path)
    return path


@pytest.fixture
def folders(tmp_path):
    """Two folders: same.png equal, other.png 4 apart, one file on each side alone."""
    for side, offset in (("a", 0), ("b", 4)):
        picture(tmp_path / side / "same.png")
        picture(tmp_path / side / "sub" / "other.png", offset)
        picture(tmp_path / side / f"only_{side}.png")
    return tmp_path / "a", tmp_path / "b"


def test_equal_pictures(run_cli, tmp_path):
    one = picture(tmp_path / "one.png")
    result = run_cli("compare", one, one, "--json")
    assert result.returncode == 0
    (pair,) = json.loads(result.stdout)["pairs"]
    assert pair["psnr"] is None, "an infinite PSNR has no JSON number"
    assert (pair["ssim"], pair["mse"], pair["max_difference"]) == (1.0, 0.0, 0)
    assert "inf" in run_cli("compare", one, one).stdout


def test_figures_of_a_constant_offset(run_cli, tmp_path):
    result = run_cli("compare", picture(tmp_path / "a.png"), picture(tmp_path / "b.png", 4), "--json")
    (pair,) = json.loads(result.stdout)["pairs"]
    assert pair["mse"] == 16.0
    assert pair["max_difference"] == 4
    assert pair["psnr"] == pytest.approx(10 * math.log10(255**2 / 16), abs=1e-9)
    assert 0.9 < pair["ssim"] < 1


def test_folders_pair_by_relative_name(run_cli, folders):
    result = run_cli("compare", *folders, "--json")
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert {pair["name"]: pair["max_difference"] for pair in report["pairs"]} == {
        "same.png": 0, "sub/other.png": 4}
    assert report["only_in_a"] == ["only_a.png"]
    assert report["only_in_b"] == ["only_b.png"]
    assert report["mean"]["mse"] == 8.0


def test_folder_table_names_what_has_no_partner(run_cli, folders):
    lines = run_cli("compare", *folders).stdout.splitlines()
    assert lines[0].split()[0] == "picture"
    assert any(line.startswith("sub/other.png") for line in lines)
    assert any("only_a.png" in line for line in lines)


@pytest.mark.parametrize("case", ["other size", "absent", "not a picture", "file and folder"])
def test_pairs_that_cannot_be_compared(run_cli, tmp_path, case):
    good = picture(tmp_path / "good.png")
    bad = tmp_path / "bad.png"
    if case == "other size":
        picture(bad, size=(WIDTH + 1, HEIGHT))
    elif case == "not a picture":
        bad.write_text("no picture")
    elif case == "file and folder":
        bad.mkdir()
    result = run_cli("compare", good, bad)
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert result.stderr.startswith("cachedit: error: [")
    if case == "other size":
        assert "24x16" in result.stderr and "25x16" in result.stderr
    else:
        assert "bad.png" in result.stderr


def test_folders_without_a_common_name(run_cli, tmp_path):
    picture(tmp_path / "a" / "x.png")
    picture(tmp_path / "b" / "y.png")
    result = run_cli("compare", tmp_path / "a", tmp_path / "b")
    assert result.returncode == 1
    assert result.stderr.startswith("cachedit: error: [")


def test_a_bad_pair_in_a_folder_fails_after_the_others(run_cli, folders):
    a, b = folders
    (b / "same.png").write_text("no picture")
    result = run_cli("compare", a, b)
    assert result.returncode == 1
    assert "sub/other.png" in result.stdout
    assert "same.png" in result.stdout + result.stderr
