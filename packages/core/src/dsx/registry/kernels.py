"""Which variant of an operation runs: the best score that is not 0, unless the user forces or requires another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsx.errors import KernelError, did_you_mean
from dsx.plugin.catalog import VARIANTS, install
from dsx.plugin.discovery import PluginWarning
from dsx.plugin.manager import Tagged
from dsx.plugin.naming import REMEDY, Who
from dsx.plugin.types import Kernel, Score
from dsx.registry.loading import load_object
from dsx.warned import warn_outside

if TYPE_CHECKING:
    from torch import Tensor


class KernelChoice:
    """The variants of every operation, scored when an operation is first asked for."""

    def __init__(
        self, offered: Sequence[Tagged[Kernel]], *, who: Callable[[str], Who], forced: str | None = None
    ) -> None:
        self._who = who
        self._variants: dict[str, dict[str, Tagged[Kernel]]] = {}
        self._scores: dict[tuple[str, str], Score] = {}
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {}
        self._faults: dict[tuple[str, str], str] = {}
        for item in offered:
            self._variants.setdefault(item.value.operation, {})[item.value.variant] = item
        self._forced = self._parse(os.environ.get("DSX_KERNELS", "") if forced is None else forced)

    @property
    def operations(self) -> tuple[str, ...]:
        """Every operation that has a variant, sorted."""
        return tuple(sorted(self._variants))

    def get(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]:
        """The function to call. Raises KernelError, with each variant's reason, where none can run."""
        variant = self.chosen(operation, like=like)
        key = (operation, variant)
        if key not in self._functions:
            item = self._variants[operation][variant]
            what, who = f"kernel {operation}={variant}", self._who(item.plugin)
            made = load_object(item.value.load, what=what, provider=who.provider, block=who.block)
            if not callable(made):
                raise who.wrong(what, found=f"{type(made).__name__} {made!r:.60}", wanted="a function")
            self._functions[key] = made
        return self._functions[key]

    def chosen(self, operation: str, *, like: Tensor | None = None) -> str:
        """The name of the variant that `get` gives."""
        forced = self._forced.get(operation)
        if forced is not None:
            self._refuse_unfit(operation, forced, like)
            return forced
        for variant, score in self.scores(operation):
            if score.value > 0 and self._takes(operation, variant, like):
                return variant
        reasons = "; ".join(
            f"{variant}: {self._reason(operation, variant, like)}" for variant in self._known(operation)
        )
        raise KernelError(
            f"no variant of kernel {operation!r} can run{_for(like)}: {reasons}\n"
            f"    what to do: mend what a reason names, or install a plugin with a variant that runs here"
        )

    def scores(self, operation: str) -> tuple[tuple[str, Score], ...]:
        """(variant, score), the best first; variants of one score by name, so that every rank chooses alike."""
        scored = [(variant, self._score(operation, variant)) for variant in self._known(operation)]
        return tuple(sorted(scored, key=lambda pair: (-pair[1].value, pair[0])))

    def require(self, operation: str, variant: str) -> Callable[..., Any]:
        """This variant from now on; a fall-back is an error."""
        self._refuse_unknown(operation, variant, said=f"kernels.require({operation!r}, {variant!r})")
        self._refuse_unfit(operation, variant, None)
        self._forced[operation] = variant
        return self.get(operation)

    def _known(self, operation: str) -> dict[str, Tagged[Kernel]]:
        if operation not in self._variants:
            meant = did_you_mean(operation, self._variants)
            raise KernelError(
                f"unknown kernel operation {operation!r}{meant}: wanted one of {', '.join(self.operations) or 'none'}\n"
                f"    what to do: correct the name, or install or unblock the plugin that offers it"
            )
        return self._variants[operation]

    def _score(self, operation: str, variant: str) -> Score:
        key = (operation, variant)
        if key not in self._scores:
            self._scores[key] = self._scored(self._variants[operation][variant])
        return self._scores[key]

    def _scored(self, item: Tagged[Kernel]) -> Score:
        """The variant's own word; a probe that fails means: not here, and is told once."""
        said: Any = None
        try:
            said = item.value.score()
            problem = "" if isinstance(said, Score) else f"its score gave {type(said).__name__}, wanted a Score"
        except Exception as error:  # noqa: BLE001  (told, and the variant is not used)
            problem = f"its score raised {type(error).__name__}: {error}"
        return Score(0, self._told(item, problem)) if problem else said

    def _takes(self, operation: str, variant: str, like: Tensor | None) -> bool:
        return not self._unfit(operation, variant, like)

    def _unfit(self, operation: str, variant: str, like: Tensor | None) -> str:
        """Why a tensor like this cannot be passed; nothing where it can. A variant that fails to say is not used."""
        item, key = self._variants[operation][variant], (operation, variant)
        if like is None or item.value.supports is None:
            return ""
        if key not in self._faults:
            try:
                return "" if item.value.supports(like) else f"does not take tensors{_for(like)}"
            except Exception as error:  # noqa: BLE001  (told, and the variant is not used)
                self._faults[key] = self._told(item, f"its supports raised {type(error).__name__}: {error}")
        return self._faults[key]

    def _told(self, item: Tagged[Kernel], problem: str) -> str:
        """The reason why a variant is not used, after one warning that a plugin is at fault."""
        who = self._who(item.plugin)
        what = f"kernel {item.value.operation}={item.value.variant} of plugin {who.provider} is not used: {problem}"
        warn_outside(f"{what}{REMEDY}{who.remedy}", PluginWarning)
        return f"{problem}, by plugin {who.provider}"

    def _reason(self, operation: str, variant: str, like: Tensor | None) -> str:
        score = self._score(operation, variant)
        return score.why if score.value <= 0 else self._unfit(operation, variant, like)

    def _refuse_unfit(self, operation: str, variant: str, like: Tensor | None) -> None:
        if self._score(operation, variant).value <= 0 or not self._takes(operation, variant, like):
            raise KernelError(
                f"kernel {operation}={variant} is forced or required, but cannot run{_for(like)}: "
                f"{self._reason(operation, variant, like)}\n"
                f"    what to do: leave the choice to dsx, or mend what the reason names (`dsx report` says more)"
            )

    def _refuse_unknown(self, operation: str, variant: str, *, said: str) -> None:
        known = self._known(operation)
        if variant not in known:
            hint = "correct the name, or install the plugin that offers it"
            if variant in VARIANTS:
                hint = f"it needs {VARIANTS[variant]}: {install(VARIANTS[variant])}"
            raise KernelError(
                f"{said} names an unknown variant{did_you_mean(variant, known)}: "
                f"wanted one of {', '.join(sorted(known))}\n    what to do: {hint}"
            )

    def _parse(self, text: str) -> dict[str, str]:
        forced: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            operation, separator, variant = (piece.strip() for piece in part.partition("="))
            if not separator or not operation or not variant:
                raise KernelError(f"DSX_KERNELS has {part!r}, wanted operation=variant, several separated by commas")
            if operation in forced and forced[operation] != variant:
                raise KernelError(
                    f"DSX_KERNELS forces {operation} twice: found {forced[operation]} and {variant}, wanted one"
                )
            self._refuse_unknown(operation, variant, said=f"DSX_KERNELS={part}")
            forced[operation] = variant
        return forced


def _for(like: Tensor | None) -> str:
    return "" if like is None else f" of {like.dtype} on {like.device.type}"
