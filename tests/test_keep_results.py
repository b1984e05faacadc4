"""The results that the repository keeps: computed again from the outcomes beside them, and kept only if sound."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from cotalk.checks import Evidence, check, intervals
from cotalk.cli import main
from cotalk.recompute import recompute
from test_checks import write_study

ROOT = Path(__file__).parents[1]
KEPT = sorted(ROOT.glob("results/*/results.json"))


def keep(study: Path, target: Path, most: int = 1_000_000) -> list[Path]:
    spec = importlib.util.spec_from_file_location("keep_results", ROOT / "scripts" / "keep_results.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.MOST_BYTES = most
    return list(script.keep(study, target))


def test_the_quickstarts_results_are_kept() -> None:
    assert ROOT / "results" / "quickstart" / "results.json" in KEPT


@pytest.mark.parametrize("path", KEPT, ids=[path.parent.name for path in KEPT])
def test_every_interval_that_the_repository_keeps_comes_out_of_the_outcomes_beside_it(path: Path) -> None:
    assert main(["check", str(path), "--json"]) == 0
    evidence = Evidence(path)
    assert intervals(evidence).result == "pass"
    found = recompute(evidence.document, evidence.outcomes)
    assert not found.faults and not found.wording and found.intervals > 100
    assert found.comparisons == len(json.loads(path.read_text(encoding="utf-8"))["comparisons"])
    assert {place.split(".")[0] for place in found.left} <= {"cross_play", "causal"}  # of other chats
    assert sum(file.stat().st_size for file in path.parent.rglob("*.npz")) <= 4_000_000


def test_a_kept_result_that_was_touched_fails_the_check(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT / "results" / "quickstart", tmp_path / "quickstart")) / "results.json"
    document = json.loads(copy.read_text(encoding="utf-8"))
    document["conditions"]["trained_open"]["score"]["low"] += 0.05  # a narrower interval, all else as it was
    copy.write_text(json.dumps(document), encoding="utf-8")
    assert [each.name for each in check(copy) if each.result == "fail"] == ["intervals"]
    assert main(["check", str(copy)]) == 1


def test_a_study_is_kept_with_its_outcomes_in_place_of_what_was_there(tmp_path: Path) -> None:
    study, target = write_study(tmp_path / "study"), tmp_path / "kept"
    (study / "report.html").write_text("<p>report</p>")
    (target / "outcomes").mkdir(parents=True)
    (target / "outcomes" / "gone.npz").write_bytes(b"of a condition that is no more")
    (target / "README.md").write_text("what somebody wrote beside it")
    written = keep(study, target)
    assert sorted(path for path in target.rglob("*") if path.is_file()) == sorted(
        [*written, target / "README.md"]
    )
    assert {path.name for path in written} == {
        "results.json", "report.html", *(path.name for path in (study / "outcomes").iterdir()),
    }  # fmt: skip
    assert main(["check", str(target / "results.json")]) == 0
    with pytest.raises(SystemExit, match="expected at most 1,000 to commit"):
        keep(study, target, most=1000)
    (study / "outcomes" / "floor.npz").unlink()
    (study / "runs" / "open-17" / "done.json").unlink()
    with pytest.raises(SystemExit, match=r"fails runs: open-17 has not ended.*Expected a study that passes"):
        keep(study, target)
    assert (target / "outcomes" / "floor.npz").is_file()  # what was kept stays


def test_a_study_without_its_report_leaves_what_was_kept(tmp_path: Path) -> None:
    study, target = write_study(tmp_path / "study"), tmp_path / "kept"
    (target / "outcomes").mkdir(parents=True)
    (target / "outcomes" / "old.npz").write_bytes(b"kept")
    with pytest.raises(SystemExit, match=r"has no report\.html"):
        keep(study, target)
    assert (target / "outcomes" / "old.npz").is_file()
