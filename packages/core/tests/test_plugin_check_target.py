"""Which plugin a name means, what its files say of it, and how a report is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_subjects import SPEC, bad

from dsx.authoring.check.findings import Finding, Report, Verdict, ok, wrong
from dsx.authoring.check.packaging import packaging
from dsx.authoring.check.run import check_plugin, excused, find, in_order
from dsx.authoring.check.target import Target, installed, named
from dsx.authoring.project import install_project
from dsx.errors import PluginError
from dsx.testing import write_distribution

SAMPLES = Path(__file__).parents[3] / "tests" / "samples"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


# Names ------------------------------------------------------------------------------------------------------------


def test_a_plugin_is_found_by_entry_point_distribution_and_module(disk: Path) -> None:
    code = {"acme_one/__init__.py": "", "acme_one/plugin.py": "raise SystemExit('imported')"}
    write_distribution(disk, "Acme.One-dsx", modules=code, entry_points={"one": "acme_one.plugin"}, version="2.1")
    known = installed()
    target = Target("one", "acme_one.plugin", "Acme.One-dsx", "2.1")
    for name in ("one", "acme-one-dsx", "acme_one.plugin"):
        assert named(name, known) == (target,)


def test_a_module_that_no_entry_point_loads_is_a_plugin_too(disk: Path) -> None:
    (disk / "mine").mkdir()
    (disk / "mine" / "dsx_plugin.py").write_text("raise SystemExit('imported')")
    assert named("mine.dsx_plugin", installed()) == (Target("mine.dsx_plugin", "mine.dsx_plugin"),)
    assert named("mine.absent", installed()) == ()


def test_every_entry_point_of_a_distribution_is_meant(disk: Path) -> None:
    points = {"a": "acme_two:first", "b": "acme_two:second"}
    write_distribution(disk, "acme-two", modules={"acme_two.py": ""}, entry_points=points)
    assert [target.name for target in named("acme-two", installed())] == ["a", "b"]


def test_own_name_is_asked_for_and_an_unknown_one_refused(disk: Path) -> None:
    (disk / "acme_three.py").write_text(SPEC.format(name="calls-itself"))
    (disk / "acme_four.py").write_text("raise SystemExit(3)")
    known = (Target("four", "acme_four"), Target("three", "acme_three"))
    assert find("calls-itself", known) == (known[1],)
    with pytest.raises(PluginError) as caught:
        find("calls-itsel", known)
    assert "did you mean 'calls-itself'" in str(caught.value)
    assert "what to do" in str(caught.value)


def test_the_core_is_no_plugin_to_check() -> None:
    with pytest.raises(PluginError, match="the core's own plugin"):
        find("core", installed())


# Packages ---------------------------------------------------------------------------------------------------------


def test_package_without_requirement_types_and_manners_is_caught(disk: Path) -> None:
    code = {"acme_five/__init__.py": "from acme_six import plugin\n", "acme_five/plugin.py": "import acme_six.parts\n"}
    write_distribution(disk, "acme-five", modules=code, entry_points={"five": "acme_five.plugin"}, requires=("numpy",))
    other = Target("six", "acme_six.plugin", "acme-six", "1.0")
    found = bad(packaging(Target("five", "acme_five.plugin", "acme-five", "1.0"), (other,)))
    assert "acme-five requires numpy, wanted dsx-core" in found["requires dsx-core"]
    assert "no file py.typed in acme_five" in found["py.typed"]
    assert "plugin.py:1 imports acme_six.parts, which is of acme-six 1.0" in found["law of imports"]
    assert "__init__.py:1 imports acme_six" in found["law of imports"]


def test_local_module_need_not_be_packaged(disk: Path) -> None:
    write_distribution(disk, "acme-seven", modules={"acme_seven/__init__.py": "", "acme_seven/plugin.py": ""})
    findings = list(packaging(Target("acme_seven.plugin", "acme_seven.plugin", "", ""), ()))
    verdicts = {finding.check: finding.verdict for finding in findings}
    assert verdicts["py.typed"] == verdicts["metadata"] == Verdict.NOT_APPLICABLE


def test_good_package_has_nothing_to_mend(disk: Path) -> None:
    install_project(SAMPLES / "acme-metrics", into=disk)
    (target,) = named("acme-metrics", installed())
    findings = list(packaging(target, installed()))
    assert [finding.verdict for finding in findings] == [Verdict.OK] * 4


def test_project_without_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"no pyproject\.toml"):
        install_project(tmp_path, into=tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(PluginError, match=r"no project\.version"):
        install_project(tmp_path, into=tmp_path)


# Reports ----------------------------------------------------------------------------------------------------------


def test_report_is_in_order_and_says_each_thing_once() -> None:
    findings = in_order(
        [
            wrong("failures", "hook dsx_report", "raised KeyError", "mend it"),
            ok("leaks", "files", "as before"),
            wrong("contract", "hook dsx_report", "raised KeyError", "mend it"),
            ok("contract", "hook dsx_report", "2 values"),
            ok("leaks", "threads", "as before"),
            Finding("import cost", "seconds", Verdict.SLOW, "99 ms", "import later"),
        ]
    )
    report = Report("acme", "acme-dsx", "1.0", tuple(findings))
    assert report.rows == (
        ("contract", "hook dsx_report", "wrong", "raised KeyError", "mend it"),
        ("import cost", "seconds", "slow", "99 ms", "import later"),
        ("leaks", "files, threads", "ok", "as before", ""),
    )
    assert len(report.wrong) == 2
    assert report.summary == "4 checks of acme (acme-dsx 1.0): 1 wrong, 1 slow"
    assert json.loads(report.as_json())["findings"][0] == {
        "area": "contract",
        "check": "hook dsx_report",
        "result": "wrong",
        "found": "raised KeyError",
        "what to do": "mend it",
    }
    assert "| leaks | files, threads | ok | as before |  |" in report.markdown()


def test_what_fails_on_purpose_can_be_exempt() -> None:
    finding = wrong("numerics", "driver with x=1", "3 apart", "mend it")
    assert excused(finding, ["driver *"]).verdict is Verdict.NOT_APPLICABLE
    assert excused(finding, ["kernel *"]) is finding


def test_each_plugin_of_a_distribution_is_checked(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"a": "acme_seven:first", "b": "acme_seven:second"}
    write_distribution(disk, "acme-seven", modules={"acme_seven.py": ""}, entry_points=points)
    monkeypatch.setattr("dsx.authoring.check.run.check_target", lambda job: [ok("contract", "spec", job.target.load)])
    report = check_plugin("acme-seven")
    assert [finding.check for finding in report.findings] == ["a: spec", "b: spec"]
    assert report.title == "acme-seven (acme-seven 1.0)"


def test_findings_survive_a_pipe() -> None:
    finding = wrong("leaks", "threads", "a | b\nc", "end it")
    assert Finding.read(json.loads(json.dumps(finding.plain()))) == finding
    assert "a \\| b<br>c" in Report("x", "", "", (finding,)).markdown()
