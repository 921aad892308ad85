compiler: str

def built() -> list[str]: ...
def available() -> list[str]: ...
def chosen() -> str: ...
def adam_step(
    n: int,
    *,
    shard: tuple[int, int],
    grad: tuple[int, int],
    exp_avg: tuple[int, int],
    exp_avg_sq: tuple[int, int],
    copy_out: tuple[int, int],
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_factor: float,
    decoupled: bool,
    bias_correction: bool,
    threads: int,
    isa: str = "",
) -> None: ...
