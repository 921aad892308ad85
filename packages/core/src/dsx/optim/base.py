"""What dsx's own optimizers share: owners of states that call kernels by name, over pieces of any layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, overload

import torch
from torch import Tensor

from dsx.errors import EngineError
from dsx.kernels import reference
from dsx.optim.parameters import moments_dtype
from dsx.optim.piece import Piece
from dsx.optim.runs import Rule, Run, Slot, allocate, fingerprint, follows, neighbours, place_of, span, work_dtype_of

Group = dict[str, Any]
Kernels = Mapping[str, Callable[..., Any]]


class KernelSource(Protocol):
    """What gives the best kernel of an operation for a tensor: ``dsx.registry.Registry`` does."""

    def kernel(self, operation: str, *, like: Tensor | None = None) -> Callable[..., Any]: ...


class Optimizer(torch.optim.Optimizer, ABC):
    """A torch optimizer that also updates pieces: ``update`` is what engines call, ``step`` works without one.

    ``kernels`` gives the kernels by operation: a registry, a mapping, or ``None`` for the torch references. State is
    kept per master parameter in ``state``, as in torch, with ``step`` as an int; the tensors of neighbouring pieces
    are views of one buffer, so that their updates merge into one kernel call.
    """

    ownership: ClassVar[Literal["element", "parameter"]] = "element"
    """Whether any flat range of a parameter can be updated alone, or only whole parameters."""
    references: ClassVar[Mapping[str, Callable[..., Any]]] = MappingProxyType({})
    """The torch references of a subclass's own operations, by operation: they serve where no registry gives kernels."""

    def __init__(
        self,
        params: Iterable[Any],
        defaults: Group,
        *,
        kernels: KernelSource | Kernels | None = None,
        state_dtype: torch.dtype | str | None = None,
    ) -> None:
        self.state_dtype = moments_dtype(state_dtype)
        """Dtype of moments; ``None``: that of the arithmetic, fp32 (fp64 for fp64 weights)."""
        self._kernels = kernels
        self._plans: dict[tuple[int, int], tuple[list[Any], list[Run]]] = {}
        super().__init__(params, defaults)

    def use_kernels(self, kernels: KernelSource | Kernels) -> None:
        """Take kernels from here, unless the optimizer was built with its own source."""
        if self._kernels is None:
            self._kernels = kernels
            self._plans = {}

    # What a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def rule(self, group: Group, name: str, master: Tensor) -> Rule:
        """How this parameter is updated. Called when its state is made and when runs are planned."""

    @abstractmethod
    def arguments(self, group: Group, rule: Rule, *, step: int) -> dict[str, Any]:
        """The kernel's keyword arguments for a run at this update, besides factor and copy."""

    def moments(self, master: Tensor, *keys: str) -> tuple[Slot, ...]:
        """State tensors of these names for a parameter, in the optimizer's dtype of moments, zero at first."""
        dtype = self.state_dtype if self.state_dtype is not None else work_dtype_of(master)
        return tuple(Slot(key, dtype) for key in keys)

    # What engines call ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, pieces: Sequence[Piece], *, factor: float = 1.0) -> None:
        """Update each piece that has a gradient by ``factor * grad``, and write its ``publish`` copy.

        A piece whose gradient is ``None`` keeps weights, moments and step count. Gradients are only read. May be
        called bucket by bucket: the plan of runs is kept for each.
        """
        self.init_state(pieces)
        present = [piece for piece in pieces if piece.grad is not None]
        if not present:
            return
        self._refuse_sparse(present)
        key = (id(present[0].master), len(present))
        mark = fingerprint(present, self.state)
        known = self._plans.get(key)
        if known is None or known[0] != mark or not all(self._fits(run, present) for run in known[1]):
            known = (mark, self._plan(present))
            self._plans[key] = known
        for run in known[1]:
            self._update_run(run, present, factor)

    def init_state(self, pieces: Sequence[Piece]) -> None:
        """Make the state of each piece that has none: zero moments, step 0. Neighbours share their buffers."""
        new = [piece for piece in pieces if piece.master not in self.state or not self.state[piece.master]]
        if not new:
            return
        groups = self._group_of()
        rules = [self.rule(self.param_groups[self._index(groups, p)], p.name, p.master) for p in new]
        order = sorted(range(len(new)), key=lambda i: (groups[id(new[i].master)], *place_of(new[i].master)))
        batch: list[int] = []
        for i in order:
            if batch and not self._share(new[batch[-1]], new[i], rules[batch[-1]] == rules[i], groups):
                self._make(new, batch, rules[batch[-1]])
                batch = []
            batch.append(i)
        self._make(new, batch, rules[batch[-1]])

    @property
    def state_bytes_per_element(self) -> float:
        """Bytes of state for each element of the parameters, on average over those it holds."""
        pieces = self._own_pieces(every=True)
        groups = self._group_of()
        rules = [self.rule(self.param_groups[groups[id(p.master)]], p.name, p.master) for p in pieces]
        total = sum(piece.master.numel() for piece in pieces)
        counted = sum(
            piece.master.numel() * slot.dtype.itemsize
            for piece, rule in zip(pieces, rules, strict=True)
            for slot in rule.slots
        )
        return counted / total if total else 0.0

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from the parameters' own ``grad``, as any torch optimizer does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update(self._own_pieces())
        return loss

    # State dictionaries --------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state dictionary of this optimizer or of its namesake in torch; dtypes of the moments stay ours."""
        super().load_state_dict(state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        loaded = {p: state_dict["state"][i] for i, p in zip(ids, params, strict=True) if i in state_dict["state"]}
        self.state.clear()
        owned = [piece for piece in self._own_pieces(every=True) if piece.master in loaded]
        self.init_state(owned)
        for piece in owned:
            self._take(piece, loaded[piece.master])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "state_dtype": self.state_dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by load_state_dict, copy and pickle, which replace groups and states: the plan of runs is void."""
        super().__setstate__(state)
        self._plans = {}
        self.__dict__.setdefault("_kernels", None)

    # Inside --------------------------------------------------------------------------------------------------------

    def _take(self, piece: Piece, source: Mapping[str, Any]) -> None:
        state = self.state[piece.master]
        tensors = [key for key in state if key != "step"]
        for key in tensors:
            if key not in source:
                raise EngineError(
                    f"the state dictionary has no {key!r} for parameter {piece.name or tuple(piece.master.shape)}: "
                    f"it is that of another optimizer than {type(self).__name__}"
                )
            if source[key] is not None:
                state[key].copy_(source[key])
        # torch's SGD counts no steps: a momentum means that there was one
        state["step"] = int(source.get("step", any(source[key] is not None for key in tensors)))

    def _own_pieces(self, *, every: bool = False) -> list[Piece]:
        pieces: list[Piece] = []
        for group in self.param_groups:
            names = group.get("param_names") or [""] * len(group["params"])
            for name, p in zip(names, group["params"], strict=True):
                if every or p.requires_grad or p.grad is not None:
                    pieces.append(Piece(name=name, master=p, grad=p.grad, publish=None))
        return pieces

    def _group_of(self) -> dict[int, int]:
        return {id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]}

    def _index(self, groups: Mapping[int, int], piece: Piece) -> int:
        found = groups.get(id(piece.master))
        if found is None:
            raise EngineError(
                f"piece {piece.name!r} belongs to no parameter group of this {type(self).__name__}: "
                "give the optimizer the masters of all pieces, or add_param_group"
            )
        return found

    def _share(self, before: Piece, after: Piece, same_rule: bool, groups: Mapping[int, int]) -> bool:
        same = same_rule and groups[id(before.master)] == groups[id(after.master)]
        return same and follows(before.master, after.master)

    def _make(self, new: Sequence[Piece], batch: Sequence[int], rule: Rule) -> None:
        masters = [new[i].master for i in batch]
        for master, tensors in zip(masters, allocate(masters, rule.slots), strict=True):
            self.state[master] = {"step": 0, **tensors}

    def _fits(self, run: Run, present: Sequence[Piece]) -> bool:
        """Whether steps and rule still hold: a loader may set steps, a user a momentum where there was none."""
        first = present[run.pieces[0]]
        return run.in_step() and self.rule(self.param_groups[run.group], first.name, first.master) == run.rule

    def _plan(self, present: Sequence[Piece]) -> list[Run]:
        groups = self._group_of()
        chosen = [self._index(groups, piece) for piece in present]
        rules = [self.rule(self.param_groups[g], p.name, p.master) for g, p in zip(chosen, present, strict=True)]
        for piece, rule in zip(present, rules, strict=True):
            missing = [slot for slot in rule.slots if slot.key not in self.state[piece.master]]
            self.state[piece.master].update(allocate([piece.master], missing)[0])
        order = sorted(range(len(present)), key=lambda i: (chosen[i], *place_of(present[i].master)))
        bunches: list[list[int]] = []
        last: int | None = None
        for i in order:
            piece = present[i]
            self._check(piece)
            if last is not None and piece.master.numel() and self._joins(present, last, i, rules, chosen):
                bunches[-1].append(i)
            else:
                # a piece without elements stands alone, before its neighbours' bunch, which it does not cut
                bunches.insert(len(bunches) if piece.master.numel() else 0, [i])
            last = i if piece.master.numel() else last
        return [self._run(bunch, present, rules[bunch[0]], chosen[bunch[0]]) for bunch in bunches]

    def _joins(
        self, present: Sequence[Piece], before: int, after: int, rules: Sequence[Rule], chosen: Sequence[int]
    ) -> bool:
        """Whether the second piece goes on where the first ends, and may be updated in one call with it."""
        first, second = present[before], present[after]
        states = (self.state[first.master], self.state[second.master])
        alike = rules[before] == rules[after] and chosen[before] == chosen[after]
        return alike and rules[after].merge and neighbours(first, second, states, rules[after])

    def _check(self, piece: Piece) -> None:
        grad = piece.grad
        if grad is not None and grad.shape != piece.master.shape:
            raise EngineError(
                f"the gradient of {piece.name!r} has shape {tuple(grad.shape)}, its weights {tuple(piece.master.shape)}"
            )

    def _refuse_sparse(self, present: Sequence[Piece]) -> None:
        for piece in present:
            if piece.grad is not None and piece.grad.layout is not torch.strided:
                raise EngineError(
                    f"the gradient of {piece.name!r} is sparse, and {type(self).__name__} takes dense ones: "
                    "build the embedding with sparse=False"
                )

    def _run(self, bunch: list[int], present: Sequence[Piece], rule: Rule, group: int) -> Run:
        first = present[bunch[0]]
        states = [self.state[present[i].master] for i in bunch]
        numel = sum(present[i].master.numel() for i in bunch)
        plain = first.master.is_contiguous() and (first.publish is None or first.publish.is_contiguous())
        flat = plain and rule.merge
        return Run(
            rule=rule,
            group=group,
            pieces=bunch,
            numel=numel,
            master=span(first.master, numel) if flat else first.master.detach(),
            states=tuple(span(states[0][s.key], numel) if flat else states[0][s.key] for s in rule.slots),
            kernel=self._kernel(rule.operation, first.master),
            flat=flat,
            plain=plain,
            counters=states,
        )

    def _kernel(self, operation: str, like: Tensor) -> Callable[..., Any]:
        if self._kernels is not None and not isinstance(self._kernels, Mapping):
            return self._kernels.kernel(operation, like=like)
        for source in (self._kernels or {}, self.references):
            if operation in source:
                return source[operation]
        return reference(operation)

    def _update_run(self, run: Run, present: Sequence[Piece], factor: float) -> None:
        for counter in run.counters:
            counter["step"] += 1
        if run.numel == 0:
            return
        first = present[run.pieces[0]]
        assert first.grad is not None
        more = self.arguments(self.param_groups[run.group], run.rule, step=run.counters[0]["step"])
        grad, publish = first.grad.detach(), first.publish
        if run.flat:
            grad = span(grad, run.numel) if grad.is_contiguous() else grad.reshape(-1)
            publish = None if publish is None else span(publish, run.numel)
        if run.plain:
            grad = grad.contiguous()
            run.kernel(run.master, grad, *run.states, grad_factor=factor, copy_out=publish, **more)
            return
        weights, states, grad = run.master.contiguous(), run.states, grad.contiguous()
        if run.rule.merge:
            weights, grad, states = weights.view(-1), grad.view(-1), tuple(s.view(-1) for s in states)
        run.kernel(weights, grad, *states, grad_factor=factor, copy_out=None, **more)
        run.master.copy_(weights.view(run.master.shape))
        if publish is not None:
            publish.copy_(run.master)
