"""The core's own keys. `dsx.config.compose` adds a field for each section that an installed plugin owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, Field, PrivateAttr, ValidationError
from pydantic_core import PydanticCustomError

from dsx.config.auto import Auto
from dsx.config.precision import Bf16Section, DataTypesSection, DTypeName, Fp16Section, TorchAutocastSection
from dsx.config.saving import CheckpointSection
from dsx.config.section import Section, keys_of, plain_kinds
from dsx.config.training import ActivationCheckpointingSection, OptimizerSection, SchedulerSection
from dsx.config.watching import (
    CometSection,
    CommsLoggerSection,
    FileMonitorSection,
    MonitorSection,
    PrometheusSection,
    TimersSection,
    WandbSection,
)
from dsx.errors import ConfigError, did_you_mean

S = TypeVar("S", bound=Section)


def _steps(value: float) -> float:
    if not value > 0 or (value != float("inf") and value != int(value)):
        raise PydanticCustomError("range", "not a whole number > 0 and not inf")
    return value


Count = Annotated[int, Field(gt=0)]
Steps = Annotated[
    float, AfterValidator(_steps), Field(json_schema_extra={"wanted": "a whole number > 0, or inf for never"})
]


class DsxConfig(Section):
    """A whole configuration. Keys are DeepSpeed's; those that only dsx has say so."""

    # Batch sizes: train = micro × accumulation × data replicas, solved once the mesh is known.
    train_batch_size: Auto[Count] | None = None
    """Samples in one update over all ranks. What is not given follows from the other two batch keys."""
    train_micro_batch_size_per_gpu: Auto[Count] | None = None
    """Samples in one forward of one rank."""
    gradient_accumulation_steps: Auto[Count] | None = None
    """Forwards and backwards of one rank before an update."""
    managed_gradient_accumulation: bool = True
    """The engine counts micro-batches. False: the caller does, and every ``step()`` updates."""
    data_parallel_size: Count | None = None
    """How many data replicas there must be. None: as many as the other mesh axes leave; given: checked."""
    dataloader_drop_last: bool = False
    """Leave out a last batch that is not full."""

    optimizer: OptimizerSection | None = None
    """Optimizer by name; None: the one given to ``dsx.initialize``."""
    scheduler: SchedulerSection | None = None
    """Learning-rate schedule by name; None: the one given to ``dsx.initialize``, or a constant rate."""

    gradient_clipping: Auto[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default=0.0,
        json_schema_extra={"deepspeed": "since 0.19 DeepSpeed clips at 1.0 when the key is absent; dsx does not clip"},
    )
    """Largest norm of the gradient of the whole model; longer ones are scaled down to it. 0: no clipping."""
    prescale_gradients: bool = False
    """Divide gradients before they are summed over ranks, instead of after: safer in fp16, the same result."""
    gradient_predivide_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Divide gradients by this before the sum and by the rest after it; with prescale_gradients, all is done before."""
    gradient_allreduce_op: Literal["mean", "sum"] = "mean"
    """Whether gradients of data replicas are averaged or summed."""
    communication_data_type: DTypeName | None = None
    """In which format gradients travel. None: the format in which they are accumulated."""
    gradient_codec: Annotated[str, Field(min_length=1)] | None = None
    """Codec in which gradients travel: bf16, int8, or a plugin's. None: as communication_data_type says. Own to dsx."""

    fp16: Fp16Section = Fp16Section()
    """Half precision with a loss scale."""
    bf16: Bf16Section = Field(default=Bf16Section(), validation_alias=AliasChoices("bf16", "bfloat16"))
    """bfloat16; ``bfloat16`` is read as the same section."""
    torch_autocast: TorchAutocastSection = TorchAutocastSection()
    """fp32 weights, computed under torch.autocast."""
    data_types: DataTypesSection = DataTypesSection()
    """Number formats of gradients and buffers."""

    activation_checkpointing: ActivationCheckpointingSection = ActivationCheckpointingSection()
    """Recompute activations in backward."""
    checkpoint: CheckpointSection = CheckpointSection()
    """How checkpoints are written."""

    steps_per_print: Steps | None = Field(
        default=None,
        json_schema_extra={"deepspeed": "its documents say 10; its code, like dsx, prints nothing"},
    )
    """Updates between two lines of progress that rank 0 prints on stderr. None or inf: never."""
    wall_clock_breakdown: bool = False
    """Time forward, backward and step on rank 0, waiting for the device; printed with steps_per_print, else always."""
    memory_breakdown: bool = False
    """Print memory in use around forward, backward and step; with steps_per_print, else at every update."""
    dump_state: bool = False
    """Rank 0 prints the plan when the engine is built, in place of its precision line."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    """Level of the logger ``dsx`` while the engine lives. Above info, the precision line is not printed at start."""
    timers: TimersSection = TimersSection()
    """Which clocks run."""
    comms_logger: CommsLoggerSection = CommsLoggerSection()
    """Prints what collectives moved."""
    tensorboard: FileMonitorSection = FileMonitorSection()
    """Metrics as TensorBoard event files."""
    csv_monitor: FileMonitorSection = FileMonitorSection()
    """Metrics as CSV, one file a metric."""
    jsonl_monitor: FileMonitorSection = FileMonitorSection()
    """Metrics as JSON lines. Own to dsx."""
    wandb: WandbSection = WandbSection()
    """Metrics to Weights & Biases."""
    comet: CometSection = CometSection()
    """Metrics to Comet."""
    prometheus: PrometheusSection = PrometheusSection()
    """Metrics for a Prometheus server. Own to dsx."""
    monitors: tuple[MonitorSection, ...] = ()
    """Further monitors by name, each with its params; a plugin's are enabled here. Own to dsx."""

    seed: int = Field(default=1234, ge=0)
    """Seed of all that dsx draws itself: the loader's order, weights made under ``dsx.construct``. Own to dsx."""
    comm_timeout: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """Seconds after which a collective that other ranks have not joined is an error. Own to dsx."""

    zero_allow_untested_optimizer: bool = False
    """Accepted without effect: every optimizer runs over shards; by whole parameters where it is not element-wise."""
    zero_force_ds_cpu_optimizer: bool = True
    """Accepted without effect: every optimizer may run on the host."""
    disable_allgather: bool = False
    """Accepted without effect: it replaced one all-gather by broadcasts for old networks."""
    vocabulary_size: Count | None = None
    """Accepted without effect: it only printed advice on alignment."""
    disable_python_gc: bool = False
    """Accepted without effect: the collector is your program's; call ``gc.disable()`` where pauses hurt."""

    _given: frozenset[str] | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        self._given = frozenset(_given_paths(self))

    def section(self, model: type[S]) -> S:
        """The section that is of this class, as a plugin asks for its own; with its defaults where it is absent."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, model):
                return value
        return model()

    def has(self, key: str) -> bool:
        """Whether the user gave this key (``"fp16.loss_scale"``), or any key below it. Resolved values do not count."""
        path = canonical(type(self), key)
        given = self._given or frozenset()
        return path in given or any(known.startswith(path + ".") for known in given)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The same configuration with these keys (paths) replaced; what the user gave is remembered.

        Raises ConfigError for a key that does not exist and for a value that it does not take.
        """
        changed: Any = self
        for key, value in values.items():
            try:
                changed = _replace(changed, key.split("."), value)
            except ValidationError as error:
                raise ConfigError(
                    f"{key}: found {value!r}, which it does not take: {error.errors()[0]['msg']}\n"
                    f"    what to do: give a value of the kind that `dsx config schema` shows"
                ) from error
        if changed is not self:
            changed._given = self._given
        return changed  # type: ignore[no-any-return]


def _given_paths(section: BaseModel, prefix: str = "") -> Iterator[str]:
    for name in section.model_fields_set:
        value = getattr(section, name)
        yield prefix + name
        if isinstance(value, BaseModel):
            yield from _given_paths(value, f"{prefix}{name}.")
        elif isinstance(value, Mapping):
            yield from (f"{prefix}{name}.{key}" for key in value)


def canonical(model: type[BaseModel], key: str) -> str:
    """The path by field names, for a path that may use other spellings of the same keys."""
    names: list[str] = []
    current: Any = model
    for part in key.split("."):
        keys = keys_of(current) if current is not None else {}
        names.append(keys.get(part, part))
        current = section_class(current, names[-1]) if names[-1] in keys.values() else None
    return ".".join(names)


def section_class(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a field that is itself a section; None for a plain value."""
    for kind in plain_kinds(model.model_fields[name].annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def item_class(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of each item where a field is a list of sections, such as ``monitors``; else None."""
    for kind in get_args(model.model_fields[name].annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and section_class(model, name) is None:
            return kind
    return None


def _replace(holder: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    if isinstance(holder, BaseModel):
        model = type(holder)
        known = keys_of(model)
        if parts[0] not in known:
            raise ConfigError(
                f"{parts[0]}: unknown key{did_you_mean(parts[0], known)}, wanted one of {', '.join(sorted(known))}\n"
                f"    what to do: correct it"
            )
        name = known[parts[0]]
        current = {field: getattr(holder, field) for field in holder.model_fields_set}
        inner = getattr(holder, name)
        if inner is None and len(parts) > 1:
            kind = section_class(model, name)
            inner = kind() if kind is not None else {}
        current[name] = _replace(inner, parts[1:], value)
        return model.model_validate(current)
    return {**holder, parts[0]: _replace(holder.get(parts[0]), parts[1:], value)}
