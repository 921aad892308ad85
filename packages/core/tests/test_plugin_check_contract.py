"""Each check of the contract catches its fault, and says nothing of a plugin without one."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from check_subjects import bad, subject
from fake_plugins import plugin
from pydantic import ConfigDict, field_validator

from dsx.authoring.check import answers, components, contract, sections
from dsx.authoring.check.findings import Verdict
from dsx.authoring.check.subject import Subject
from dsx.plugin import (
    API_VERSION,
    CODEC,
    MONITOR,
    OPTIMIZER,
    SCHEDULE,
    Claim,
    Command,
    Component,
    Kernel,
    MeshAxis,
    ReportRow,
    Resolved,
    Score,
    Section,
    hookimpl,
    needs,
    sets,
)


class Good(Section):
    """A good section."""

    enabled: bool = False
    """Switches it on."""
    size: int = 3
    """How much."""


def test_a_good_plugin_has_nothing_to_mend(tmp_path: Path) -> None:
    def claims(config: Any) -> Iterator[Claim]:
        yield needs("graph", "eager", why="it reads the modules")
        if config.section(Good).enabled:
            yield sets("loop", "acme", why="good.enabled=true")

    it = subject(folder=tmp_path, sections={"good": Good}, dsx_claims=claims, dsx_report=lambda: ())
    steps = (
        contract.identity,
        contract.hooks,
        answers.answers,
        answers.idleness,
        sections.shapes,
        sections.values,
        components.components,
        components.commands,
        contract.clashes,
    )
    found = [finding for step in steps for finding in step(it)]
    assert [finding for finding in found if finding.bad] == []
    assert {finding.check for finding in found} >= {"spec", "API version", "hook dsx_claims", "odd values of good"}


# Who it is, and its hooks -----------------------------------------------------------------------------------------


def test_plugin_without_a_spec_is_caught(tmp_path: Path) -> None:
    it = subject(types.ModuleType("fake_acme"), folder=tmp_path)
    assert "no function dsx_plugin" in bad(contract.identity(it))["spec"]


@pytest.mark.parametrize(
    ("answer", "words"), [(7, "gave int 7"), (None, "gave NoneType"), ("raise", "raised KeyError")]
)
def test_bad_spec_is_caught(tmp_path: Path, answer: Any, words: str) -> None:
    def dsx_plugin() -> Any:
        if answer == "raise":
            raise KeyError("name")
        return answer

    module = types.ModuleType("fake_acme")
    module.dsx_plugin = hookimpl(dsx_plugin)  # type: ignore[attr-defined]
    assert words in bad(contract.identity(subject(module, folder=tmp_path)))["spec"]


def test_another_api_version_is_caught_with_both_numbers(tmp_path: Path) -> None:
    it = subject(plugin("acme", api=API_VERSION + 6), folder=tmp_path)
    found = bad(contract.identity(it))["API version"]
    assert str(API_VERSION + 6) in found
    assert f"has {API_VERSION}" in found
    assert it.spec.api == API_VERSION  # so that the rest can be checked


def test_section_that_is_none_is_caught(tmp_path: Path) -> None:
    it = subject(folder=tmp_path, sections={"odd": dict})  # type: ignore[dict-item]
    assert "wanted a subclass" in bad(contract.identity(it))["section classes"]
    assert not it.spec.sections


def test_every_wrong_hook_is_a_finding_of_its_own(tmp_path: Path) -> None:
    module = plugin("acme", dsx_claim=lambda config: [], dsx_passes=lambda config, mesh: [])
    module.dsx_report = list  # type: ignore[attr-defined]

    def around() -> Iterator[None]:
        yield

    module.dsx_claims = hookimpl(wrapper=True)(around)  # type: ignore[attr-defined]
    found = bad(contract.hooks(subject(module, folder=tmp_path)))
    assert "did you mean 'dsx_claims'" in found["hook dsx_claim"]
    assert "dsx_passes(config, mesh) asks for mesh" in found["hook dsx_passes"]
    assert "it passes dsx_passes(config: 'DsxConfig')" in found["hook dsx_passes"]
    assert "is a wrapper" in found["hook dsx_claims"]
    assert "not marked with @hookimpl" in found["hook dsx_report"]


# What hooks answer ------------------------------------------------------------------------------------------------


def answer(folder: Path, hook: str, function: Any) -> str:
    return bad(answers.answers(subject(folder=folder, **{hook: function}))).get(f"hook {hook}", "")


def test_exception_in_a_hook_is_caught(tmp_path: Path) -> None:
    def late() -> Iterator[Claim]:
        yield needs("graph", "eager", why="")
        raise RuntimeError("late")

    assert "raised RuntimeError: late (at test_plugin_check_contract.py" in answer(tmp_path, "dsx_claims", late)


def test_exit_in_a_hook_is_caught(tmp_path: Path) -> None:
    def leave() -> None:
        raise SystemExit(3)

    assert "raised SystemExit: 3" in answer(tmp_path, "dsx_report", leave)


@pytest.mark.parametrize(
    ("hook", "given", "words"),
    [
        ("dsx_mesh_axes", [("acme", 1)], "found tuple ('acme', 1), wanted MeshAxis"),
        ("dsx_resolve", 3, "int, wanted an iterable"),
        ("dsx_commands", [Command("x", load=3, summary="")], "load"),  # type: ignore[arg-type]
        ("dsx_construct", 5, "found int 5"),
    ],
)
def test_answer_of_the_wrong_type_is_caught(tmp_path: Path, hook: str, given: Any, words: str) -> None:
    assert words in answer(tmp_path, hook, lambda: given)


def test_answer_that_varies_is_caught(tmp_path: Path) -> None:
    count = itertools.count()
    found = answer(tmp_path, "dsx_report", lambda: [ReportRow("acme", "calls", str(next(count)))])
    assert "answered differently" in found


def test_output_of_a_hook_is_caught(tmp_path: Path) -> None:
    assert "printed 'hello'" in answer(tmp_path, "dsx_passes", lambda: print("hello"))


def test_hook_that_needs_a_known_model_is_caught(tmp_path: Path) -> None:
    found = answer(tmp_path, "dsx_resolve", lambda facts: [Resolved("good.size", facts.parameters // 2, "half")])
    assert "raised TypeError" in found


# Idle unless asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"dsx_claims": lambda: [sets("driver", "acme", why="it is better")]}, "it sets driver acme"),
        ({"dsx_claims": lambda: [sets("graph", "acme", why="")]}, "does not say why"),
        ({"dsx_mesh_axes": lambda: [MeshAxis("acme", 2)]}, "axis 'acme' of degree 2"),
        ({"dsx_claims": lambda: [needs("param", "sharded", why="big")]}, "no plan can be made"),
    ],
)
def test_plugin_that_acts_unasked_is_caught(tmp_path: Path, hooks: Any, words: str) -> None:
    assert words in bad(answers.idleness(subject(folder=tmp_path, **hooks)))["idle by default"]


def test_unknown_resource_and_foreign_key_are_caught(tmp_path: Path) -> None:
    it = subject(
        folder=tmp_path,
        dsx_claims=lambda: [needs("gradients", "whole", why="x")],
        dsx_resolve=lambda: [Resolved("fp16.loss_scale", 1, "better")],
    )
    found = bad(answers.idleness(it))["claims and keys"]
    assert "unknown resource 'gradients'" in found
    assert "fp16.loss_scale" in found


# Sections ---------------------------------------------------------------------------------------------------------


class Careless(Section):
    """Undocumented, open and not frozen, with a default of the wrong type."""

    model_config = ConfigDict(extra="allow", frozen=False)

    size: int = "many"  # type: ignore[assignment]


class Required(Section):
    """A field without default."""

    size: int
    """How much."""


def test_careless_section_is_caught(tmp_path: Path) -> None:
    found = bad(sections.shapes(subject(folder=tmp_path, sections={"careless": Careless})))
    assert "size has no docstring" in found["section careless: documented"]
    assert "not frozen" in found["section careless: frozen"]
    assert "takes any key" in found["section careless: unknown keys"]
    assert "does not take its own default 'many'" in found["section careless: defaults"]


def test_section_without_defaults_is_caught(tmp_path: Path) -> None:
    found = bad(sections.shapes(subject(folder=tmp_path, sections={"must": Required})))
    assert "size has no default" in found["section must: defaults"]


class Loose(Section):
    """Takes anything, and its validator fails in its own way."""

    names: Any = None
    """Names of modules."""
    ratio: float = 1.0
    """A part."""

    @field_validator("ratio")
    @classmethod
    def _known(cls, value: float) -> float:
        return {1.0: 1.0, 1.5: 1.5}[value]


def test_odd_values_that_end_in_other_errors_are_caught(tmp_path: Path) -> None:
    def claims(config: Any) -> list[Claim]:
        names = config.section(Loose).names
        return [] if names is None else [needs("graph", "eager", why=", ".join(names))]

    found = bad(sections.values(subject(folder=tmp_path, sections={"loose": Loose}, dsx_claims=claims)))
    assert "-1: dsx_claims raised TypeError" in found["odd values of loose.names"]
    assert "-1: reading it raised KeyError" in found["odd values of loose.ratio"]


# Components -------------------------------------------------------------------------------------------------------


class Half:
    """Half a monitor."""

    def write(self, values: Any, *, step: int) -> None: ...


def offered(folder: Path, *offers: Component[Any] | Kernel) -> dict[str, str]:
    return bad(components.components(subject(folder=folder, offers=offers)))


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (Component(MONITOR, "x", load=lambda: Half), "Half lacks close"),
        (Component(CODEC, "x", load=lambda: 5), "loads int 5, wanted a class"),
        (Component(SCHEDULE, "x", load=lambda: 5), "wanted a function or class"),
        (Component(OPTIMIZER, "x", load="torch.optim:Sophia"), "AttributeError"),
        (Component(OPTIMIZER, "x", load="no_such_module:X"), "ModuleNotFoundError"),
        (Component(OPTIMIZER, "x", load="torch.optim"), "not of the form"),
    ],
)
def test_component_of_the_wrong_shape_is_caught(tmp_path: Path, offer: Component[Any], words: str) -> None:
    assert words in offered(tmp_path, offer)[f"{offer.kind.name} x"]


def good_score() -> Score:
    return Score(5, "here")


def bad_score() -> Score:
    raise OSError("no such processor")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel("adam_step", "x", load=lambda: 5, score=lambda: 5), "score() gave 5"),  # type: ignore[arg-type, return-value]
        (Kernel("adam_step", "x", load=lambda: max, score=bad_score), "raised OSError"),
        (Kernel("adam_step", "x", load=lambda: max, score=lambda: Score(3, "")), "does not say why"),
        (Kernel("acme_step", "x", load=lambda: max, score=good_score), "wanted a variant 'torch'"),
        (Kernel("acme_step", "torch", load=lambda: max, score=good_score), "score of a reference is 5"),
        (Kernel("adam_step", "x", load=lambda: max, score=good_score, supports=lambda like: 1), "supports"),  # type: ignore[arg-type, return-value]
        (
            Kernel("acme_step", "torch", load=lambda: max, score=lambda: Score(1, "it"), form=lambda: 3),  # type: ignore[arg-type, return-value]
            "its form is int",
        ),
    ],
)
def test_kernel_of_the_wrong_shape_is_caught(tmp_path: Path, kernel: Kernel, words: str) -> None:
    (found,) = offered(tmp_path, kernel).values()
    assert words in found


def test_command_that_cannot_be_loaded_is_caught(tmp_path: Path) -> None:
    listed = [Command("io", load="no_such_module:app", summary="x"), Command("mute", load="os:getcwd", summary="")]
    found = bad(components.commands(subject(folder=tmp_path, dsx_commands=lambda: listed)))
    assert "ModuleNotFoundError" in found["command io"]
    assert "no summary" in found["command mute"]


# Names ------------------------------------------------------------------------------------------------------------


def test_names_of_the_core_are_caught_one_by_one(tmp_path: Path) -> None:
    module = plugin(
        "core",
        sections={"fp16": Good},
        dsx_components=lambda: [
            Component(OPTIMIZER, "adam", load=lambda: torch.optim.Adam),
            Component(OPTIMIZER, "new", load=lambda: torch.optim.Adam, aliases=("LION",)),
            Kernel("adam_step", "torch", load=lambda: max, score=good_score),
            Component(SCHEDULE, "twice", load=lambda: max),
            Component(SCHEDULE, "Twice", load=lambda: max),
        ],
        dsx_commands=lambda: [Command("run", load="os:getcwd", summary="x")],
    )
    it: Subject = subject(module, folder=tmp_path)
    assert set(bad(contract.clashes(it))) == {
        "optimizer adam",
        "optimizer lion",
        "kernel adam_step=torch",
        "schedule twice",
        "command run",
        "plugin core",
        "section fp16",
    }
    assert [components.name_of(offer) for offer in it.offers][:2] == ["optimizer adam", "optimizer new"]


def test_verdicts_are_written_in_words() -> None:
    assert [str(verdict) for verdict in Verdict] == ["ok", "wrong", "slow", "not applicable"]
