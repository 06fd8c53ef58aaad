"""The folder of an unfinished index: its lock, its steps, and its end."""

import os

import pytest

from rerank.errors import ConfigError
from rerank.retrieval.build_folder import BuildFolder, build_folder

PLAN = {"dense": "flat"}


def fill(build: BuildFolder) -> None:
    build.index.mkdir()
    (build.index / "file").write_text("content", encoding="utf-8")


def test_two_builds_of_the_same_index_are_refused(tmp_path):
    with (
        build_folder(tmp_path / "out", PLAN),
        pytest.raises(ConfigError, match=r"another process is building .*out; wait"),
        build_folder(tmp_path / "out", PLAN),
    ):
        pass
    with build_folder(tmp_path / "out", PLAN):
        pass


def test_folder_left_without_its_index_is_begun_anew(tmp_path):
    """As after a kill between the naming of the index and the removal of the rest, when the index was deleted."""
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("all", lambda: fill(build))
        (build.folder / "shards").touch()
        build.index.rename(tmp_path / "elsewhere")
    with build_folder(tmp_path / "out", {"dense": "hnsw"}) as build:
        assert build.seconds == {}
        assert [path.name for path in build.folder.iterdir()] == ["plan.json"]


def test_build_that_is_repeated_runs_no_finished_step_again(tmp_path):
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("first", lambda: fill(build))
        seconds = dict(build.seconds)
    ran = []
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("first", lambda: ran.append("first"))
        build.step("second", lambda: ran.append("second"))
        assert (ran, build.seconds["first"]) == (["second"], seconds["first"])
        assert (build.index / "file").exists()


def test_unfinished_index_by_another_plan_is_kept_and_refused(tmp_path):
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("all", lambda: fill(build))
    with (
        pytest.raises(ConfigError, match="unfinished index with dense flat instead of hnsw; repeat"),
        build_folder(tmp_path / "out", {"dense": "hnsw"}),
    ):
        pass
    with build_folder(tmp_path / "out", PLAN) as build:
        assert "all" in build.seconds


def test_other_plan_replaces_the_unfinished_index_on_request(tmp_path):
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("all", lambda: fill(build))
    with build_folder(tmp_path / "out", {"dense": "hnsw"}, replace_others=True) as build:
        assert (build.seconds, build.index.exists()) == ({}, False)


@pytest.mark.parametrize("name", ["plan.json", "steps.json", "index/file"])
def test_folder_that_a_power_loss_cut_is_begun_anew(tmp_path, name, caplog):
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("all", lambda: fill(build))
        assert build.folder.name == "out.partial"
    os.truncate(tmp_path / "out.partial" / name, 0)
    with build_folder(tmp_path / "out", PLAN) as build:
        assert (build.seconds, build.index.exists()) == ({}, False)
    assert f"{name} " in caplog.text
    assert "the build starts over" in caplog.text
    with build_folder(tmp_path / "out", PLAN) as build:
        build.step("all", lambda: fill(build))
    with build_folder(tmp_path / "out", PLAN) as build:
        assert list(build.seconds) == ["all"]
