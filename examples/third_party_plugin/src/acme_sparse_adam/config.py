"""The plugin's section of a configuration, and what follows from it before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from dsx.plugin import Auto, AutoType, Claim, Problem, Resolved, Section, needs
from pydantic import Field

from acme_sparse_adam import NAME

if TYPE_CHECKING:
    from dsx.config.root import DsxConfig
    from dsx.planning.plan import Plan

WHY = "a gradient that rounds to zero in fp16 would count as none"


class SparseAdamSection(Section):
    """How much of a model its gradients reach, as a line: it shows where this optimizer pays off."""

    report_every: Auto[Annotated[int, Field(ge=0)]] = 0
    """Updates between two lines; 0: none. auto: as often as steps_per_print, or never."""
    parameters: tuple[str, ...] = ("*",)
    """Names of the parameters that are counted, with wildcards, such as ``*embedding*``."""


def report_interval(config: DsxConfig) -> Iterator[Resolved]:
    """The value of ``report_every`` where it stands at auto."""
    if isinstance(config.section(SparseAdamSection).report_every, AutoType):
        every = config.steps_per_print
        never = every is None or every == float("inf")
        why = "steps_per_print asks for no lines" if never else "as often as steps_per_print"
        yield Resolved(f"{NAME}.report_every", 0 if never else int(every or 0), why)


def claims(config: DsxConfig) -> Iterator[Claim]:
    """Only where this optimizer is chosen: installing the package changes nothing."""
    if is_chosen(config):
        yield needs("dtype", "fp32", "bf16", why=WHY, nearest='"bf16": {"enabled": true} in place of fp16')


def problems(plan: Plan) -> Iterator[Problem]:
    """What is not the precision of the model, but rounds its gradients all the same."""
    config = plan.config
    if is_chosen(config) and config.communication_data_type == "fp16":
        yield Problem("communication_data_type", f"{NAME} cannot take fp16: {WHY}", "leave it out, or say bf16")
    if is_chosen(config) and config.torch_autocast.enabled and config.torch_autocast.dtype == "fp16":
        yield Problem("torch_autocast.dtype", f"{NAME} cannot take fp16: {WHY}", "say bf16")


def is_chosen(config: DsxConfig) -> bool:
    """Whether the configuration names this optimizer, in any case."""
    return config.optimizer is not None and config.optimizer.type.lower() == NAME
