"""Models as descriptions: what a constructor does to its parameters is written down, and done when they are placed.

Within :func:`deferred`, parameters live on the meta device and remember how they are initialised: ``nn.init``,
``Module.apply``, ``with torch.no_grad(): weight[0].zero_()``, values computed from the parameter itself all count.
:func:`fill` does the steps on real memory, with random numbers that follow from the parameter's name, so any layout
draws the same weights. Buffers are made at once. What cannot be written down is an error, never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dsx.deferred.recipe import Recipe, Region, Step, Storage, Tape, metas, region_of, storage_of
from dsx.errors import EngineError

_INIT = "torch.nn.init"
_TRUNCATED = "_no_grad_trunc_normal_"
"""The one initialiser of torch that looks at its draws: it is written down as a whole."""
_IS_META: Any = Tensor.is_meta.__get__  # type: ignore[attr-defined]
_SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]


class Described(nn.Parameter):
    """A parameter without memory, and its recipe."""

    recipe: Recipe
    recorder: _Recorder | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Described:
        if id(self) in memo:
            known: Described = memo[id(self)]
            return known
        with nullcontext() if self.recorder is None else self.recorder.paused():
            copied = _without_memory(self)
        copied.recipe = self.recipe.copy(storage_of(copied))
        copied.recorder = self.recorder
        if self.recorder is not None:
            self.recorder.add(copied)
        memo[id(self)] = copied
        return copied


def _without_memory(param: Tensor) -> Described:
    place = torch.empty_like(param, device="meta", memory_format=torch.contiguous_format)
    described: Described = torch.Tensor._make_subclass(Described, place, param.requires_grad)
    return described


def refuse(what: str) -> NoReturn:
    """The error for what cannot be written down."""
    raise EngineError(
        f"{what}, which cannot be done while parameters are only described. Build this model outside of dsx.construct "
        "and pass it to dsx.initialize"
    )


class _Recorder(TorchDispatchMode):
    """Writes operations on tensors without memory into the tapes of the parameters that they lead to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tapes: dict[Storage, Tape] = {}
        self.kept: dict[Storage, Any] = {}
        """Storages are kept until recording ends, so that no number is used twice."""
        self.described: list[Described] = []
        self.count = 0
        self.silent = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written down within."""
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before

    def add(self, described: Described) -> None:
        """Record what happens to this parameter."""
        self.described.append(described)
        described.recorder = self
        self._keep(described)
        self.tapes[storage_of(described)] = described.recipe.tape

    def ends(self) -> None:
        """Recording is over."""
        for described in self.described:
            described.recipe.version = described._version
            described.recorder = None

    def leads_to_parameter(self, tensor: Any) -> bool:
        """Whether a tensor is part of a described parameter, or computed with one."""
        if not isinstance(tensor, Tensor) or tensor.device.type != "meta":
            return False
        tape = self.tapes.get(storage_of(tensor))
        return tape is not None and tape.recipe is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if self.silent:
            return func(*args, **options)
        inputs = metas(tree_leaves((args, options)))
        involved = any(self.leads_to_parameter(tensor) for tensor in inputs)
        if involved and func is torch.ops.aten._local_scalar_dense.default:
            refuse("the constructor looks at a value of a parameter")
        try:
            result = _without_values(func, args, options) if involved else func(*args, **options)
        except (NotImplementedError, RuntimeError) as error:
            if involved:
                refuse(f"the constructor calls {func} on a parameter ({str(error).splitlines()[0]})")
            raise
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        before = {storage_of(tensor) for tensor in inputs}
        new = [t if t.device.type == "meta" and storage_of(t) not in before else None for t in outputs]
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        if writes or any(tensor is not None for tensor in new):
            self.record(func, args, options, inputs=inputs, new=new, writes=writes)
        return result

    def record(
        self,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        inputs: list[Tensor],
        new: list[Tensor | None],
        writes: bool,
    ) -> None:
        """Write one operation down."""
        if not inputs and not any(tensor is not None for tensor in new):
            return
        made = [tensor for tensor in new if tensor is not None]
        for tensor in made:
            self._keep(tensor)
        storages = {storage_of(tensor) for tensor in inputs}
        tapes = {id(tape): tape for tape in map(self.tapes.get, storages) if tape is not None}
        recipes = [tape.recipe for tape in tapes.values() if tape.recipe is not None]
        if len(recipes) > 1 or not storages <= self.tapes.keys():
            if writes and recipes:
                refuse(f"the constructor computes a parameter from another one ({operation})")
            return  # what was made is unknown from here on, and writing a parameter from it is refused
        tape = Tape()
        for other in tapes.values():
            tape.absorb(other)
        tape.storages.update(storage_of(tensor) for tensor in made)
        for storage in tape.storages | storages:
            self.tapes[storage] = tape

        def regions(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return region_of(value) if value.device.type == "meta" else value.detach().clone()

        places: tuple[Region | None, ...] = tuple(None if tensor is None else region_of(tensor) for tensor in new)
        self.count += 1
        tape.steps.append(Step(self.count, operation, tree_map(regions, args), tree_map(regions, options), places))

    def _keep(self, tensor: Tensor) -> None:
        self.kept[storage_of(tensor)] = tensor.untyped_storage()


def _without_values(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Call an operation for its shapes: real tensors, which the tape keeps, are taken for meta ones."""
    for position, argument in enumerate(func._schema.arguments):
        written = args[position] if position < len(args) else options.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and isinstance(written, Tensor) and written.device.type != "meta":
            refuse(f"the constructor writes a parameter's values elsewhere ({func})")

    def shape(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    return func(*tree_map(shape, args), **tree_map(shape, dict(options)))


class _Whole(TorchFunctionMode):
    """Calls that are written down as a whole, and questions that a parameter must answer as if it were there."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        first = args[0] if args else next(iter(options.values()), None)
        if getattr(func, "__module__", "") == _INIT and self.recorder.leads_to_parameter(first):
            return self.initialise(func, args, options)
        if func == _IS_META and self.recorder.leads_to_parameter(first):
            return False
        if func == _SET_DATA and self.recorder.leads_to_parameter(first):
            return self.replace(args[0], args[1])
        return func(*args, **options)

    def initialise(self, func: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Write one call of an initialiser down; it returns its first argument."""
        inputs = metas(tree_leaves((args, options)))
        self.recorder.record(func, args, options, inputs=inputs, new=[], writes=True)
        return args[0] if args else options["tensor"]

    def replace(self, tensor: Tensor, value: Tensor) -> None:
        """``param.data = value``."""
        if tensor.shape != value.shape:
            refuse(f"the constructor gives a parameter of shape {tuple(tensor.shape)} data of {tuple(value.shape)}")
        if value.device.type != "meta" or storage_of(value) != storage_of(tensor):
            with torch.no_grad():
                tensor.detach().copy_(value)


@contextmanager
def deferred() -> Iterator[None]:
    """Parameters registered within are described, not allocated."""
    recorder = _Recorder()
    whole = _Whole(recorder)
    truncated = getattr(nn.init, _TRUNCATED)

    def registered(module: nn.Module, name: str, param: nn.Parameter | None) -> nn.Parameter | None:
        if param is None or isinstance(param, Described) or hasattr(param, "recipe"):
            return None
        if recorder.leads_to_parameter(param):
            refuse(f"parameter {name!r} of a {type(module).__name__} is computed from another one")
        if param.device.type == "meta" or not param.dtype.is_floating_point:
            return None
        with recorder.paused():
            described = _without_memory(param)
        tape = Tape(storages={storage_of(described)})
        described.recipe = tape.recipe = Recipe(param.detach(), tape, (storage_of(described),))
        recorder.add(described)
        return described

    def truncated_normal(tensor: Tensor, *args: Any, **options: Any) -> Any:
        if recorder.leads_to_parameter(tensor):
            return whole.initialise(truncated, (tensor, *args), options)
        return truncated(tensor, *args, **options)

    hook: Any = registered  # torch's stub has no word for a hook that gives another parameter
    handle = register_module_parameter_registration_hook(hook)
    setattr(nn.init, _TRUNCATED, truncated_normal)
    try:
        with recorder, whole:
            yield
    finally:
        recorder.ends()
        setattr(nn.init, _TRUNCATED, truncated)
        handle.remove()


def fill(param: nn.Parameter, out: Tensor, *, seed: int) -> None:
    """Write a parameter's values, real or described, into ``out``. A recipe is used once, and forgotten."""
    recipe = getattr(param, "recipe", None)
    if isinstance(recipe, Recipe):
        recipe.run(out, seed=seed)
        del param.recipe  # type: ignore[attr-defined]
    else:
        out.copy_(param.data)
