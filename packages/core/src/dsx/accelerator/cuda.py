"""NVIDIA and AMD devices, as torch.cuda shows them."""

from __future__ import annotations

import os

import torch

from dsx.errors import LaunchError
from dsx.plugin.types import Score


class CudaAccelerator:
    """One device a rank. Devices are counted among those that ``CUDA_VISIBLE_DEVICES`` leaves visible."""

    name = "cuda"
    device_type = "cuda"
    backend = "nccl"

    def __init__(self) -> None:
        self._device = torch.device("cuda", 0)

    @staticmethod
    def score() -> Score:
        """Better than the host where a device answers."""
        if not torch.cuda.is_available():
            return Score(0, "torch sees no CUDA device" if torch.version.cuda else "this torch is built without CUDA")
        return Score(10, f"{torch.cuda.device_count()} devices")

    def device(self, local_rank: int) -> torch.device:
        """The device of a rank of this machine. Raises LaunchError where there are fewer devices than ranks."""
        count = self.device_count()
        if local_rank < count:
            return torch.device("cuda", local_rank)
        if count == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
            return torch.device("cuda", 0)  # the starter has shown each rank its own device
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise LaunchError(
            f"local rank {local_rank} has no device: found {count} (CUDA_VISIBLE_DEVICES is {visible}); start at most "
            f"{count} ranks on this machine: dsx run --nproc {count}"
        )

    def device_count(self) -> int:
        """Visible devices."""
        return torch.cuda.device_count()

    def set_device(self, local_rank: int) -> None:
        """Make the rank's device the current one."""
        self._device = self.device(local_rank)
        torch.cuda.set_device(self._device)

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked."""
        torch.cuda.synchronize(self._device)

    def native_bf16(self) -> bool:
        """Whether the device multiplies bf16 itself."""
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    def memory_allocated(self) -> int:
        """Bytes in tensors on the device."""
        return torch.cuda.memory_allocated(self._device)

    def memory_total(self) -> int:
        """Bytes on the device."""
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def describe(self) -> str:
        """Model, memory and capability in one line."""
        properties = torch.cuda.get_device_properties(self._device)
        gib = properties.total_memory / 2**30
        return f"{properties.name}, {gib:.0f} GiB, capability {properties.major}.{properties.minor}"
